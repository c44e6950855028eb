//! Structs whose fields travel one after another.

macro_rules! record {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }
        impl Wire for $name {
            fn encode(&self, to: &mut Encoder<'_>) {
                $(self.$field.encode(to);)*
            }
            fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                Ok(Self { $($field: Wire::decode(from)?),* })
            }
        }
    };
}
