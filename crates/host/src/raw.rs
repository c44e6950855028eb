//! Paths in JSON, whatever their bytes: `#[serde(with = "host::raw")]` writes one as a text where it is UTF-8, as an array of
//! numbers where it is not.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One or several paths.
pub trait Paths: Sized {
    /// What is written for them.
    type Form: Serialize + for<'de> Deserialize<'de>;
    /// To what is written.
    fn to_form(&self) -> Self::Form;
    /// From what was written.
    fn from_form(form: Self::Form) -> Self;
}

/// What is written for a path.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Form {
    /// One in UTF-8.
    Text(String),
    /// Any other.
    Bytes(Vec<u8>),
}

/// Takes no more memory than there are bytes: what serde derives would keep 32 for each until it knew which form they are.
impl<'de> Deserialize<'de> for Form {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Form;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path, as a text or an array of bytes")
            }

            fn visit_str<E>(self, text: &str) -> Result<Form, E> {
                Ok(Form::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, bytes: A) -> Result<Form, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(bytes)).map(Form::Bytes)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

impl Paths for PathBuf {
    type Form = Form;

    fn to_form(&self) -> Form {
        match self.to_str() {
            Some(text) => Form::Text(text.to_owned()),
            None => Form::Bytes(self.as_os_str().as_bytes().to_vec()),
        }
    }

    fn from_form(form: Form) -> Self {
        match form {
            Form::Text(text) => text.into(),
            Form::Bytes(bytes) => OsString::from_vec(bytes).into(),
        }
    }
}

impl<T: Paths> Paths for Option<T> {
    type Form = Option<T::Form>;

    fn to_form(&self) -> Self::Form {
        self.as_ref().map(T::to_form)
    }

    fn from_form(form: Self::Form) -> Self {
        form.map(T::from_form)
    }
}

impl<T: Paths> Paths for Vec<T> {
    type Form = Vec<T::Form>;

    fn to_form(&self) -> Self::Form {
        self.iter().map(T::to_form).collect()
    }

    fn from_form(form: Self::Form) -> Self {
        form.into_iter().map(T::from_form).collect()
    }
}

impl<T: Paths, U: Paths> Paths for (T, U) {
    type Form = (T::Form, U::Form);

    fn to_form(&self) -> Self::Form {
        (self.0.to_form(), self.1.to_form())
    }

    fn from_form(form: Self::Form) -> Self {
        (T::from_form(form.0), U::from_form(form.1))
    }
}

/// For serde.
///
/// # Errors
/// As the serializer's.
pub fn serialize<T: Paths, S: Serializer>(paths: &T, serializer: S) -> Result<S::Ok, S::Error> {
    paths.to_form().serialize(serializer)
}

/// For serde.
///
/// # Errors
/// As the deserializer's.
pub fn deserialize<'de, T: Paths, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    T::Form::deserialize(deserializer).map(T::from_form)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Record {
        #[serde(with = "super")]
        one: PathBuf,
        #[serde(with = "super")]
        maybe: Option<PathBuf>,
        #[serde(with = "super")]
        pairs: Vec<(PathBuf, PathBuf)>,
    }

    #[test]
    fn text_stays_text() {
        let record = Record { one: "/tmp/ä b".into(), maybe: None, pairs: vec![("a".into(), "b".into())] };
        assert_eq!(
            serde_json::to_string(&record).unwrap(),
            r#"{"one":"/tmp/ä b","maybe":null,"pairs":[["a","b"]]}"#
        );
    }

    proptest! {
        #[test]
        fn every_name_comes_back(one: Vec<u8>, other in proptest::option::of(any::<Vec<u8>>())) {
            let path = |bytes: Vec<u8>| PathBuf::from(OsString::from_vec(bytes));
            let one = path(one);
            let record = Record { one: one.clone(), maybe: other.map(path), pairs: vec![(one.clone(), one)] };
            let json = serde_json::to_vec(&record).unwrap();
            prop_assert_eq!(serde_json::from_slice::<Record>(&json).unwrap(), record);
        }
    }
}
