//! A medium that is another one but for some operations.

use std::collections::HashMap;
use std::fmt::Debug;
use std::io;
use std::path::PathBuf;

use super::{Media, MediaFile, MediaLock, MediaRead};

/// A medium around another. What it does not say itself is as the inner one's: of that [`Media`] is made.
pub trait Around: Debug + Send + Sync + 'static {
    /// The medium below.
    fn inner(&self) -> &dyn Media;

    /// [`Media::create`].
    ///
    /// # Errors
    /// As there.
    fn create(&self, path: &str) -> io::Result<Box<dyn MediaFile>> {
        self.inner().create(path)
    }

    /// [`Media::open`].
    ///
    /// # Errors
    /// As there.
    fn open(&self, path: &str) -> io::Result<Box<dyn MediaRead>> {
        self.inner().open(path)
    }

    /// [`Media::list`].
    ///
    /// # Errors
    /// As there.
    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.inner().list(folder)
    }

    /// [`Media::lengths`].
    ///
    /// # Errors
    /// As there.
    fn lengths(&self, folder: &str) -> io::Result<HashMap<String, u64>> {
        self.inner().lengths(folder)
    }

    /// [`Media::rename`].
    ///
    /// # Errors
    /// As there.
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner().rename(from, to)
    }

    /// [`Media::rename_new`].
    ///
    /// # Errors
    /// As there.
    fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner().rename_new(from, to)
    }

    /// [`Media::remove`].
    ///
    /// # Errors
    /// As there.
    fn remove(&self, path: &str) -> io::Result<()> {
        self.inner().remove(path)
    }

    /// [`Media::create_folder`].
    ///
    /// # Errors
    /// As there.
    fn create_folder(&self, folder: &str) -> io::Result<()> {
        self.inner().create_folder(folder)
    }

    /// [`Media::remove_folder`].
    ///
    /// # Errors
    /// As there.
    fn remove_folder(&self, folder: &str) -> io::Result<()> {
        self.inner().remove_folder(folder)
    }

    /// [`Media::sync_folder`].
    ///
    /// # Errors
    /// As there.
    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        self.inner().sync_folder(folder)
    }

    /// [`Media::lock`].
    ///
    /// # Errors
    /// As there.
    fn lock(&self, path: &str, create: bool) -> io::Result<Option<MediaLock>> {
        self.inner().lock(path, create)
    }

    /// [`Media::share`].
    ///
    /// # Errors
    /// As there.
    fn share(&self, path: &str) -> io::Result<MediaLock> {
        self.inner().share(path)
    }

    /// [`Media::side_by_side`].
    fn side_by_side(&self) -> usize {
        self.inner().side_by_side()
    }

    /// [`Media::is_memory`].
    fn is_memory(&self) -> bool {
        self.inner().is_memory()
    }

    /// [`Media::end_uploads`].
    ///
    /// # Errors
    /// As there.
    fn end_uploads(&self) -> io::Result<()> {
        self.inner().end_uploads()
    }
}

impl<T: Around> Media for T {
    fn create(&self, path: &str) -> io::Result<Box<dyn MediaFile>> {
        Around::create(self, path)
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn MediaRead>> {
        Around::open(self, path)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        Around::list(self, folder)
    }

    fn lengths(&self, folder: &str) -> io::Result<HashMap<String, u64>> {
        Around::lengths(self, folder)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Around::rename(self, from, to)
    }

    fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        Around::rename_new(self, from, to)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        Around::remove(self, path)
    }

    fn create_folder(&self, folder: &str) -> io::Result<()> {
        Around::create_folder(self, folder)
    }

    fn remove_folder(&self, folder: &str) -> io::Result<()> {
        Around::remove_folder(self, folder)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        Around::sync_folder(self, folder)
    }

    fn lock(&self, path: &str, create: bool) -> io::Result<Option<MediaLock>> {
        Around::lock(self, path, create)
    }

    fn share(&self, path: &str) -> io::Result<MediaLock> {
        Around::share(self, path)
    }

    fn side_by_side(&self) -> usize {
        Around::side_by_side(self)
    }

    fn is_memory(&self) -> bool {
        Around::is_memory(self)
    }

    fn end_uploads(&self) -> io::Result<()> {
        Around::end_uploads(self)
    }

    fn full_path(&self, path: &str) -> PathBuf {
        self.inner().full_path(path)
    }
}
