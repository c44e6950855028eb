//! Writes an image of one store into another without some of its objects, so that it is small enough to be kept as test data:
//! `cargo run -p store --example slim -- FROM IMAGE TO OBJECT…`
#![allow(clippy::unwrap_used)]

use image::Compress;
use std::path::PathBuf;
use store::{Store, WriteOptions, find_object};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, image, to, without @ ..] = &args[..] else { panic!("say FROM IMAGE TO OBJECT…") };
    let from = Store::open(&PathBuf::from(from)).unwrap();
    let image = from.open_image(&from.find(image).unwrap().id).unwrap();
    let manifest = image.manifest();
    let without: Vec<_> =
        without.iter().map(|name| find_object(manifest, name).unwrap().kind.clone()).collect();
    let draft = Store::open_or_create(&PathBuf::from(to)).unwrap().begin().unwrap();
    let options = WriteOptions { compress: Compress::Zstd, ..WriteOptions::default() };
    let writer = draft.writer(&options).unwrap();
    for object in manifest.objects.iter().filter(|object| !without.contains(&object.kind)) {
        let mut written = writer.object(object.kind.clone());
        image.copy_to(&object.kind, &mut written).unwrap();
        written.finish().unwrap();
    }
    let receipt = writer.finish().unwrap();
    let manifest = image::Manifest { objects: Vec::new(), ..manifest.clone() };
    println!("{}", draft.publish(manifest, vec![receipt]).unwrap().id);
}
