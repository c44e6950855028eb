//! Flags of the commands about images in a store.

use super::values::{location, offset};
use super::{Json, Keys, Store};
use clap::Args;
use store::{Location, Recipient};

/// `dormouse ls`
#[derive(Args, Debug)]
pub struct Ls {
    /// Only this job's images
    pub job: Option<String>,
    #[command(flatten)]
    pub store: Store,
    #[command(flatten)]
    pub json: Json,
}

/// A command about one image.
#[derive(Args, Debug)]
#[command(
    after_help = "IMAGE is an image's id or the beginning of it, or a job's name for its newest image."
)]
pub struct Image {
    /// The image
    pub image: String,
    #[command(flatten)]
    pub store: Store,
    #[command(flatten)]
    pub json: Json,
}

/// `dormouse diff`
#[derive(Args, Debug)]
#[command(
    after_help = "IMAGE is an image's id or the beginning of it, or a job's name for its newest image.\n\nObjects are compared in pieces of 2 MiB, as they are stored: one that differs counts with all its bytes. Only what is known about the images is read, not the bytes themselves. The exit code is 0 whether they differ or not.\n\n  dormouse diff 6af745b6 train     # from that image to the newest one of job train"
)]
pub struct Diff {
    /// The image to compare from
    #[arg(value_name = "IMAGE")]
    pub a: String,
    /// The image to compare to
    #[arg(value_name = "IMAGE")]
    pub b: String,
    #[command(flatten)]
    pub store: Store,
    #[command(flatten)]
    pub json: Json,
}

/// `dormouse cat`
#[derive(Args, Debug)]
#[command(
    after_help = "IMAGE is an image's id or the beginning of it, or a job's name for its newest image. OBJECT is a name that `dormouse inspect` lists; an address of device memory, or the name of a file without the part before the colon, is enough where only one fits. A file of the job's that a restart puts back is found by its path.\n\nEach piece is checked before it is written: where one is damaged the output ends before it, and the exit code is 7.\n\n  dormouse cat train record | jq .                            # what the supervisor knows of the job\n  dormouse cat train core-2.img | crit decode                 # a file of CRIU's\n  dormouse cat train 0x200000000000 --length 64 | xxd         # the first bytes of an allocation"
)]
pub struct Cat {
    /// The image
    pub image: String,
    /// The object
    pub object: String,
    /// Begin so many bytes behind its start; decimal, 0x…, or such as 2M
    #[arg(long, value_name = "BYTES", value_parser = offset)]
    pub offset: Option<u64>,
    /// Write so many bytes at most
    #[arg(long, value_name = "BYTES", value_parser = offset)]
    pub length: Option<u64>,
    /// Write to a terminal also what is not text
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub store: Store,
}

/// `dormouse verify`
#[derive(Args, Debug)]
#[command(
    after_help = "IMAGE is an image's id or the beginning of it, or a job's name for its newest image. Without it all images of the store are read, and what they have in common once.\n\nAn image that is whole has been read to the last byte, also what it has in common with others. --quick finds what is missing or cut short and what does not fit together, in a moment and whatever the image's size; it does not find bytes that have rotted."
)]
pub struct Verify {
    /// The image; all of them without it
    pub image: Option<String>,
    /// Only look whether everything is there, as long as it should be, and fits together
    #[arg(long)]
    pub quick: bool,
    /// Read every byte (the default)
    #[arg(long, conflicts_with = "quick")]
    pub read_data: bool,
    #[command(flatten)]
    pub store: Store,
    #[command(flatten)]
    pub json: Json,
}

/// `dormouse copy`
#[derive(Args, Debug)]
#[command(
    after_help = "Without IMAGE and --job all images are copied. IMAGE is an image's id or the beginning of it, or a job's name for its newest image. Each keeps its id. Only what the other store does not have is copied, as it is stored, and every byte is checked on the way.\n\nBoth stores may be in use meanwhile. A copy that was cut off lists nothing that is not whole; the same command goes on where it was, and `dormouse rm --store TO` frees what it has left if it is not to go on.\n\n  dormouse copy /var/lib/dormouse /mnt/backup               # all that is not there yet\n  dormouse copy /var/lib/dormouse /mnt/backup train         # the newest image of job train\n  dormouse copy --encrypt age1… /var/lib/dormouse s3://b/p  # into a new store that only a key opens (--key FILE)"
)]
pub struct Copy {
    /// The store that has the images: a folder, or s3://BUCKET/PREFIX
    #[arg(value_name = "FROM", value_parser = location())]
    pub from: Location,
    /// The store that is to have them; a new or empty folder, or an empty place in a bucket, becomes a store
    #[arg(value_name = "TO", value_parser = location())]
    pub to: Location,
    /// The images
    #[arg(value_name = "IMAGE")]
    pub images: Vec<String>,
    /// All images of this job; may be given several times
    #[arg(long, value_name = "JOB")]
    pub job: Vec<String>,
    /// Encrypt the other store for whoever has this one's key (age1…), if it is made now, else insist on it; may be given several times
    #[arg(long, value_name = "RECIPIENT")]
    pub encrypt: Vec<Recipient>,
    /// Copy from an encrypted store to one that is not: whoever can read that one can then read the images
    #[arg(long, conflicts_with = "encrypt")]
    pub plain: bool,
    #[command(flatten)]
    pub keys: Keys,
    /// Only say what would be copied
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub json: Json,
}

const MAX_UNUSED: &str = "How much that no image needs may lie in packs of which images need something, in percent of what they need, or `unlimited`. If it is more, what is needed of the \
                          packs with most of it is written anew, and they go";

fn part(percent: &str) -> Result<f64, String> {
    if percent == "unlimited" {
        return Ok(f64::INFINITY);
    }
    let number = percent.strip_suffix('%').unwrap_or(percent).parse().ok();
    let number = number.filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number
        .map(|number| number / 100.0)
        .ok_or_else(|| "a number of percent is wanted, or `unlimited`".to_owned())
}

/// `dormouse rm`
#[derive(Args, Debug)]
#[command(
    after_help = "IMAGE is an image's id, or the first four digits of it or more. Without one, only what no image needs is freed, such as what a removal left while a checkpoint was being written. \
                  Where the images are gone and no room could be freed the exit code is 4 if others use the store, 7 if something in it is damaged, 8 if a newer Dormouse has written it and 10 if the store cannot be changed."
)]
pub struct Rm {
    /// The images
    #[arg(value_name = "IMAGE")]
    pub images: Vec<String>,
    #[arg(long, value_name = "PERCENT", value_parser = part, default_value = "unlimited", help = MAX_UNUSED)]
    pub max_unused: f64,
    /// Only say what would be removed and freed
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub store: Store,
    #[command(flatten)]
    pub json: Json,
}

/// `dormouse prune`
#[derive(Args, Debug)]
#[command(
    after_help = "Of each job the images are kept that any of the --keep options wants; all others are removed. An hour, day, week or month without images does not count. Times are UTC, weeks begin on Monday. Images that cannot be read are left alone: `dormouse rm` removes them. \
                  The exit code is 4 where room could not be freed since others use the store, 7 where something in it is damaged, 8 where a newer Dormouse has written it and 10 where the store cannot be changed."
)]
#[group(id = "keep", required = true, multiple = true, args = ["keep_last", "keep_hourly", "keep_daily", "keep_weekly", "keep_monthly"])]
pub struct Prune {
    /// Only this job's images
    pub job: Option<String>,
    /// Keep the N newest
    #[arg(long, value_name = "N", default_value_t, hide_default_value = true)]
    pub keep_last: u32,
    /// Keep the newest of each of the last N hours
    #[arg(long, value_name = "N", default_value_t, hide_default_value = true)]
    pub keep_hourly: u32,
    /// Keep the newest of each of the last N days
    #[arg(long, value_name = "N", default_value_t, hide_default_value = true)]
    pub keep_daily: u32,
    /// Keep the newest of each of the last N weeks
    #[arg(long, value_name = "N", default_value_t, hide_default_value = true)]
    pub keep_weekly: u32,
    /// Keep the newest of each of the last N months
    #[arg(long, value_name = "N", default_value_t, hide_default_value = true)]
    pub keep_monthly: u32,
    #[arg(long, value_name = "PERCENT", value_parser = part, default_value = "10", help = MAX_UNUSED)]
    pub max_unused: f64,
    /// Only say what would be removed and freed
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub store: Store,
    #[command(flatten)]
    pub json: Json,
}
