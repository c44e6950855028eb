//! Uploads that nobody has completed or ended, as a server lists them.

use std::io;
use std::time::SystemTime;

use object_store::path::Path;

/// A page of a list of uploads.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Uploads {
    pub(super) found: Vec<Unfinished>,
    /// Behind what the next page begins, if there is one.
    pub(super) next: Option<Mark>,
}

/// An upload that was begun.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unfinished {
    /// The path, in the store, of what it is to be.
    pub(super) path: String,
    pub(super) upload: String,
    /// By the server's clock.
    pub(super) begun: SystemTime,
}

/// A place in a list of uploads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) key: String,
    pub(super) upload: String,
}

impl Uploads {
    /// What a server said of uploads below `prefix`. What it does not say well is left out.
    pub(super) fn read(answer: &[u8], prefix: &Path) -> io::Result<Self> {
        let text = std::str::from_utf8(answer).map_err(io::Error::other)?;
        if !text.contains("ListMultipartUploadsResult") {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the server does not list uploads"));
        }
        let prefix = prefix.as_ref();
        let found = text.split("<Upload>").skip(1).filter_map(|rest| {
            let one = rest.split_once("</Upload>")?.0;
            let path = field(one, "Key")?.strip_prefix(prefix)?.trim_start_matches('/').to_owned();
            let begun = humantime::parse_rfc3339(field(one, "Initiated")?).ok()?;
            Some(Unfinished { path, upload: field(one, "UploadId")?.to_owned(), begun })
        });
        let next = || {
            let (key, upload) = (field(text, "NextKeyMarker")?, field(text, "NextUploadIdMarker")?);
            Some(Mark { key: key.to_owned(), upload: upload.to_owned() })
        };
        let goes_on = field(text, "IsTruncated").is_some_and(|said| said == "true");
        Ok(Self { found: found.collect(), next: if goes_on { next() } else { None } })
    }
}

/// The text between two tags. Keys of a store's and ids of uploads have nothing that would stand there in another way.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let value = rest.split_once("</")?.0;
    (!value.is_empty() && !value.contains(['<', '&'])).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_uploads_is_read_and_what_is_odd_is_left_out() {
        let upload = |key: &str, id: &str, when: &str| {
            format!("<Upload><Key>{key}</Key><UploadId>{id}</UploadId><Initiated>{when}</Initiated></Upload>")
        };
        let when = "2026-11-25T01:02:03.000Z";
        let page = format!(
            "<?xml version=\"1.0\"?><ListMultipartUploadsResult><NextKeyMarker>p/b</NextKeyMarker>\
             <NextUploadIdMarker>2</NextUploadIdMarker><IsTruncated>true</IsTruncated>{}{}{}{}</ListMultipartUploadsResult>",
            upload("p/packs/x.pack", "1", when),
            upload("other/packs/x.pack", "2", when),
            upload("p/packs/y.pack", "3", "yesterday"),
            upload("p/packs/&amp;", "4", when),
        );
        let read = Uploads::read(page.as_bytes(), &Path::from("p")).unwrap();
        let begun = humantime::parse_rfc3339(when).unwrap();
        assert_eq!(read.found, [Unfinished { path: "packs/x.pack".into(), upload: "1".into(), begun }]);
        assert_eq!(read.next, Some(Mark { key: "p/b".into(), upload: "2".into() }));
        assert_eq!(
            Uploads::read(b"<ListMultipartUploadsResult></ListMultipartUploadsResult>", &Path::default())
                .unwrap(),
            Uploads::default()
        );
        let error = Uploads::read(b"<html>no</html>", &Path::default()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(Uploads::read(&[0xff], &Path::default()).is_err());
    }
}
