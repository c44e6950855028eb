//! Names of files and folders, relative to the store.

use std::str::FromStr;

use image::{ImageId, PackId};

pub(crate) const CONFIG: &str = "config";
pub(crate) const PACKS: &str = "packs";
pub(crate) const INDEX: &str = "index";
/// What is to go when some drafts have ended; a name that is no index's.
pub(crate) const CONDEMNED: &str = "index/condemned";
pub(crate) const IMAGES: &str = "images";
pub(crate) const TMP: &str = "tmp";
/// Every folder of a store.
pub(crate) const FOLDERS: [&str; 4] = [PACKS, INDEX, IMAGES, TMP];

const PACK_SUFFIX: &str = ".pack";
const INDEX_SUFFIX: &str = ".idx";
const IMAGE_SUFFIX: &str = ".img";
/// The lock's name in a draft's folder.
pub(crate) const LOCK_NAME: &str = "lock";

pub(crate) fn pack(id: PackId) -> String {
    format!("{PACKS}/{id}{PACK_SUFFIX}")
}

pub(crate) fn index(id: ImageId) -> String {
    format!("{INDEX}/{id}{INDEX_SUFFIX}")
}

pub(crate) fn image(id: ImageId) -> String {
    format!("{IMAGES}/{id}{IMAGE_SUFFIX}")
}

pub(crate) fn draft(id: ImageId) -> String {
    format!("{TMP}/{id}")
}

pub(crate) fn draft_lock(id: ImageId) -> String {
    format!("{TMP}/{id}/{LOCK_NAME}")
}

pub(crate) fn draft_pack(id: ImageId, pack: PackId) -> String {
    format!("{TMP}/{id}/{pack}{PACK_SUFFIX}")
}

pub(crate) fn draft_index(id: ImageId) -> String {
    format!("{TMP}/{id}/index")
}

pub(crate) fn draft_manifest(id: ImageId) -> String {
    format!("{TMP}/{id}/manifest")
}

/// The image whose manifest is called `name`.
pub(crate) fn image_of(name: &str) -> Option<ImageId> {
    id_of(name, IMAGE_SUFFIX)
}

/// The image whose index is called `name`.
pub(crate) fn index_of(name: &str) -> Option<ImageId> {
    id_of(name, INDEX_SUFFIX)
}

/// The pack that is called `name`.
pub(crate) fn pack_of(name: &str) -> Option<PackId> {
    id_of(name, PACK_SUFFIX)
}

/// The image whose draft is in a folder called `name`.
pub(crate) fn draft_of(name: &str) -> Option<ImageId> {
    id_of(name, "")
}

fn id_of<T: FromStr>(name: &str, suffix: &str) -> Option<T> {
    name.strip_suffix(suffix)?.parse().ok()
}
