//! Which of a job's images to keep, as restic's `forget` has it: the newest of each of the last hours, days, weeks, months in which there are any.

use crate::report::ImageSummary;
use crate::whole::{Found, LackingImage, Looking};
use crate::{Listing, ReadError, Removal, Store, WriteError, layout};
use image::{ImageId, Lineage};
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use std::io;

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// 1970 began on a Thursday: so many days later the first Monday.
const FIRST_MONDAY: u64 = 4;

/// How many images to keep of each job. An image that any of these wants is kept. Times are UTC, weeks begin on Monday.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Keep {
    /// The newest ones.
    pub last: u32,
    /// The newest of each of so many hours.
    pub hourly: u32,
    /// Of so many days.
    pub daily: u32,
    /// Of so many weeks.
    pub weekly: u32,
    /// Of so many months.
    pub monthly: u32,
}

/// What pruning did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Images that were looked at and kept, newest first.
    pub kept_images: Vec<ImageId>,
    /// Those of them that are not counted, because something of them is missing: older ones are kept in their place.
    pub lacking: Vec<LackingImage>,
    /// What became of the others.
    #[serde(flatten)]
    pub removal: Removal,
}

impl Keep {
    /// Whether it keeps nothing at all.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Of images with the times at which they were made, newest first: which to keep.
    fn chosen(&self, images: &[(u64, ImageId)]) -> HashSet<ImageId> {
        let created: Vec<u64> = images.iter().map(|(created, _)| *created).collect();
        let kept = images.iter().zip(self.choose(&created)).filter(|(_, kept)| *kept);
        kept.map(|((_, id), _)| *id).collect()
    }

    /// Of images that were made at these times, in ns since 1970, newest first: which to keep.
    fn choose(&self, created: &[u64]) -> Vec<bool> {
        let mut keep: Vec<bool> = (0..created.len()).map(|index| index < self.last as usize).collect();
        newest_of_each(self.hourly, created, &mut keep, |seconds| seconds / HOUR);
        newest_of_each(self.daily, created, &mut keep, |seconds| seconds / DAY);
        newest_of_each(self.weekly, created, &mut keep, |seconds| (seconds / DAY + 7 - FIRST_MONDAY) / 7);
        newest_of_each(self.monthly, created, &mut keep, |seconds| month(seconds / DAY));
        keep
    }
}

/// Keeps the first image of each of so many periods in which there are any.
fn newest_of_each(mut left: u32, created: &[u64], keep: &mut [bool], period: impl Fn(u64) -> u64) {
    let mut last = None;
    for (kept, created) in keep.iter_mut().zip(created) {
        let this = Some(period(created / 1_000_000_000));
        if left > 0 && this != last {
            (*kept, last, left) = (true, this, left - 1);
        }
    }
}

/// The month of a day since 1970, both counted from the year 0 on: Howard Hinnant's `civil_from_days`, whose years begin in March.
fn month(day: u64) -> u64 {
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    (era * 400 + year) * 12 + (5 * of_year + 2) / 153
}

impl Store {
    /// Lets `remove` take away what is not to be kept of each job's images, or of one job's. Images that cannot be read are left alone.
    ///
    /// # Errors
    /// As [`Store::list`]'s and those of `remove`.
    pub fn prune(
        &self,
        job: Option<&str>,
        keep: &Keep,
        remove: impl FnOnce(&[ImageId]) -> Result<Removal, WriteError>,
    ) -> Result<Pruned, WriteError> {
        self.prune_those(keep, |image| job.is_none_or(|job| image.job == job), remove)
    }

    /// Lets `remove` take away of a job's images that nobody had asked for all but the newest. What somebody asked for stays, and is not counted;
    /// so does what another job of the same name has left, what does not say whose it is, and what is not `ours`: the job may have been restarted
    /// elsewhere, too.
    ///
    /// # Errors
    /// As [`Store::prune`]'s.
    pub fn prune_regular(
        &self,
        job: Lineage,
        last: u32,
        ours: impl Fn(&ImageSummary) -> bool,
        remove: impl FnOnce(&[ImageId]) -> Result<Removal, WriteError>,
    ) -> Result<Pruned, WriteError> {
        let keep = Keep { last, ..Keep::default() };
        let is_meant = |image: &ImageSummary| image.regular && image.lineage == Some(job) && ours(image);
        self.prune_those(&keep, is_meant, remove)
    }

    fn prune_those(
        &self,
        keep: &Keep,
        meant: impl Fn(&ImageSummary) -> bool,
        remove: impl FnOnce(&[ImageId]) -> Result<Removal, WriteError>,
    ) -> Result<Pruned, WriteError> {
        let Divided { kept: kept_images, gone, lacking } = self.divide(keep, meant)?;
        Ok(Pruned { kept_images, lacking, removal: remove(&gone)? })
    }

    fn divide(&self, keep: &Keep, meant: impl Fn(&ImageSummary) -> bool) -> Result<Divided, ReadError> {
        let (mut divided, mut looking) = (Divided::default(), Looking::at(self));
        for images in self.settled()?.of_each_job(meant) {
            divided.add(keep, &images, &mut looking)?;
        }
        Ok(divided)
    }

    /// The images on whose strength others may go: whoever gives one its name takes it back where making that durable fails, as long as its draft is alive.
    /// An image is there before it is looked for its draft, and behind that.
    fn settled(&self) -> Result<Listing, ReadError> {
        let named: HashSet<ImageId> = self.image_ids()?.into_iter().collect();
        let drafts = self.drafts()?.into_iter();
        let unsettled: HashSet<ImageId> =
            drafts.filter(|draft| named.contains(draft) && self.may_be_alive(*draft)).collect();
        let mut listing = self.list()?;
        listing.images.retain(|image| named.contains(&image.id) && !unsettled.contains(&image.id));
        Ok(listing)
    }

    /// Whether somebody may hold a draft.
    fn may_be_alive(&self, draft: ImageId) -> bool {
        match self.media().lock(&layout::draft_lock(draft), false) {
            Ok(held) => held.is_none(),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }
}

impl Listing {
    /// The images that are `meant`, of one job after the other, newest first, with the times at which they were made.
    fn of_each_job(&self, meant: impl Fn(&ImageSummary) -> bool) -> Vec<Vec<(u64, ImageId)>> {
        let mut jobs: BTreeMap<&str, Vec<(u64, ImageId)>> = BTreeMap::new();
        for image in self.images.iter().rev().filter(|image| meant(image)) {
            jobs.entry(&image.job).or_default().push((image.created_ns, image.id));
        }
        jobs.into_values().collect()
    }
}

/// Images to keep, and those to remove, newest first.
#[derive(Debug, Default)]
struct Divided {
    kept: Vec<ImageId>,
    gone: Vec<ImageId>,
    /// Those that are kept and not counted.
    lacking: Vec<LackingImage>,
}

impl Divided {
    /// Divides one job's images. Only those are looked at that are kept, and none where nothing goes.
    fn add(
        &mut self,
        keep: &Keep,
        images: &[(u64, ImageId)],
        looking: &mut Looking<'_>,
    ) -> Result<(), ReadError> {
        let (mut counted, mut whole, mut lacking) = (images.to_vec(), HashSet::new(), HashSet::new());
        let chosen = loop {
            let chosen = keep.chosen(&counted);
            let unseen =
                counted.iter().map(|(_, id)| *id).find(|id| chosen.contains(id) && !whole.contains(id));
            let Some(next) = unseen.filter(|_| chosen.len() < counted.len()) else { break chosen };
            match looking.find(next)? {
                Found::Whole => {
                    whole.insert(next);
                    continue;
                }
                Found::Lacking(image) => {
                    lacking.insert(next);
                    self.lacking.push(image);
                }
                Found::Gone => {}
            }
            counted.retain(|(_, id)| *id != next);
        };
        let still: HashSet<ImageId> = counted.into_iter().map(|(_, id)| id).collect();
        for id in images.iter().map(|(_, id)| *id) {
            if chosen.contains(&id) || lacking.contains(&id) {
                self.kept.push(id);
            } else if still.contains(&id) {
                self.gone.push(id);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NS: u64 = 1_000_000_000;
    /// Monday, 2026-11-23, 12:00.
    const NOON: u64 = 1_795_435_200;

    fn kept(keep: Keep, seconds_ago: &[u64]) -> Vec<u64> {
        let created: Vec<u64> = seconds_ago.iter().map(|ago| (NOON - ago) * NS).collect();
        let chosen = keep.choose(&created);
        seconds_ago.iter().zip(chosen).filter(|(_, kept)| *kept).map(|(ago, _)| *ago).collect()
    }

    #[test]
    fn the_newest_of_each_period_is_kept() {
        let minutes: Vec<u64> = (0..300).map(|minute| minute * 60).collect();
        assert_eq!(kept(Keep { last: 2, ..Keep::default() }, &minutes), [0, 60]);
        // At noon the hour has just begun.
        assert_eq!(kept(Keep { hourly: 3, ..Keep::default() }, &minutes), [0, 60, 61 * 60]);
        let hours: Vec<u64> = (0..24 * 60).map(|hour| hour * HOUR).collect();
        assert_eq!(kept(Keep { daily: 2, ..Keep::default() }, &hours), [0, 13 * HOUR]);
        assert_eq!(
            kept(Keep { weekly: 2, ..Keep::default() }, &hours),
            [0, 13 * HOUR],
            "weeks begin on Monday"
        );
        let months = kept(Keep { monthly: 3, ..Keep::default() }, &hours);
        assert_eq!(months, [0, (22 * 24 + 13) * HOUR, (53 * 24 + 13) * HOUR], "October has 31 days");
        let both = Keep { last: 1, daily: 2, ..Keep::default() };
        assert_eq!(kept(both, &hours), [0, 13 * HOUR]);
        assert!(kept(Keep::default(), &hours).is_empty());
    }

    #[test]
    fn hours_without_images_do_not_count() {
        assert_eq!(
            kept(Keep { hourly: 2, ..Keep::default() }, &[10, 20, 900 * HOUR, 901 * HOUR]),
            [10, 900 * HOUR]
        );
    }

    proptest! {
        /// No more are kept than was said, the newest is, and who keeps more keeps what the other does.
        #[test]
        fn promises_hold(mut ago in prop::collection::vec(0..400 * DAY, 1..60), numbers in any::<[u8; 5]>()) {
            ago.sort_unstable();
            let [last, hourly, daily, weekly, monthly] = numbers.map(|number| u32::from(number % 8));
            let keep = Keep { last, hourly, daily, weekly, monthly };
            let more = Keep { last: last + 1, weekly: weekly + 1, ..keep };
            let created: Vec<u64> = ago.iter().map(|ago| (NOON - ago) * NS).collect();
            let (chosen, generous) = (keep.choose(&created), more.choose(&created));
            prop_assert!(chosen.iter().filter(|kept| **kept).count() <= (last + hourly + daily + weekly + monthly) as usize);
            prop_assert!(keep.is_nothing() || chosen[0]);
            prop_assert!(chosen.iter().zip(generous).all(|(kept, too)| !kept || too));
        }
    }
}
