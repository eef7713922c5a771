//! The macro with which each message is declared once for all its versions.
//!
//! ```text
//! message! {
//!     /// Doc.
//!     pub struct CreateThingsRequest<'a>(CreateThings) {      a message of this api key; nested structs have no key
//!         /// Doc.
//!         0+ name: Str<'a>;                                   in all versions
//!         2-4 size: i32 = -1;                                 in versions 2 to 4, default -1
//!         1+ rack: Option<Str<'a>> = None, null 3;            null is allowed from version 3, and the default
//!         3+ hint: i32, tag 0;                                a tagged field; tags are declared ascending
//!         5+ note: Str<'a>, ignorable;                        may be dropped in silence below version 5
//!     }
//! }
//! ```
//!
//! The words are those of Kafka's schemas. A struct without strings or bytes has no lifetime.

/// Declares messages and the structs in them; see the file's head.
macro_rules! message {
    ($(
        $(#[$doc:meta])*
        pub struct $name:ident $(<$life:lifetime>)? $(($key:ident))? { $($fields:tt)* }
    )*) => {$(
        message! { @struct [$(#[$doc])*] $name [$($life)?] { $($fields)* } }
        message! { @message $name [$($key)?] [$($life)?] }
    )*};

    (@struct [$($doc:tt)*] $name:ident [$life:lifetime] $fields:tt) => {
        message! { @define [$($doc)*] $name [<$life>] $fields }
        message! { @wire $name [<$life>] $life $fields }
    };
    (@struct [$($doc:tt)*] $name:ident [] $fields:tt) => {
        message! { @define [$($doc)*] $name [] $fields }
        message! { @wire $name [] 'w $fields }
    };

    (@message $name:ident [] [$($life:lifetime)?]) => {};
    (@message $name:ident [$key:ident] [$life:lifetime]) => {
        impl<$life> $crate::messages::Message<$life> for $name<$life> {
            const KEY: $crate::api::ApiKey = $crate::api::ApiKey::$key;
        }
    };
    (@message $name:ident [$key:ident] []) => {
        impl<'w> $crate::messages::Message<'w> for $name {
            const KEY: $crate::api::ApiKey = $crate::api::ApiKey::$key;
        }
    };

    (@define [$($doc:tt)*] $name:ident [$($generics:tt)*] {$(
        $(#[$meta:meta])*
        $first:literal $(+)? $(- $last:literal)? $field:ident : $type:ty $(= $default:expr)?
            $(, $word:ident $($number:literal)?)* ;
    )*}) => {
        $($doc)*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name $($generics)* {
            $( $(#[$meta])* pub $field: $type, )*
        }
    };

    (@wire $name:ident [$($generics:tt)*] $life:lifetime {$(
        $(#[$meta:meta])*
        $first:literal $(+)? $(- $last:literal)? $field:ident : $type:ty $(= $default:expr)?
            $(, $word:ident $($number:literal)?)* ;
    )*}) => {
        impl $($generics)* Default for $name $($generics)* {
            fn default() -> Self {
                Self { $( $field: message!(@default $type, $($default)?), )* }
            }
        }

        impl<$life> $crate::codec::Wire<$life> for $name $($generics)* {
            fn initial() -> Self {
                Self::default()
            }

            fn bytes_min(layout: $crate::codec::Layout) -> usize {
                let mut bytes = usize::from(layout.flexible);
                $(
                    if message!(@in layout, $first, $($last)?) && message!(@tag $(, $word $($number)?)*).is_none() {
                        bytes += <$type as $crate::codec::Wire>::bytes_min(layout);
                    }
                )*
                bytes
            }

            fn read(
                cursor: &mut $crate::codec::Cursor<$life>,
                layout: $crate::codec::Layout,
            ) -> Result<Self, $crate::error::DecodeError> {
                let mut value = Self::default();
                $(
                    if message!(@in layout, $first, $($last)?) && message!(@tag $(, $word $($number)?)*).is_none() {
                        value.$field = if layout.version < message!(@null $(, $word $($number)?)*) {
                            $crate::codec::Wire::read_not_null(cursor, layout)?
                        } else {
                            $crate::codec::Wire::read(cursor, layout)?
                        };
                    }
                )*
                if layout.flexible {
                    cursor.tagged_fields(|_cursor, _tag| {
                        $(
                            if message!(@tag $(, $word $($number)?)*) == Some(_tag)
                                && message!(@in layout, $first, $($last)?)
                            {
                                value.$field = $crate::codec::Wire::read(_cursor, layout)?;
                                return Ok(true);
                            }
                        )*
                        Ok(false)
                    })?;
                }
                Ok(value)
            }

            fn write(&self, writer: &mut $crate::codec::Writer, layout: $crate::codec::Layout) {
                $(
                    if !message!(@in layout, $first, $($last)?) {
                        if !message!(@ignorable $(, $word $($number)?)*)
                            && self.$field != message!(@default $type, $($default)?)
                        {
                            writer.note_misfit(concat!(
                                stringify!($name), ".", stringify!($field), " is not in the version"
                            ));
                        }
                    } else if message!(@tag $(, $word $($number)?)*).is_none() {
                        if layout.version < message!(@null $(, $word $($number)?)*) {
                            $crate::codec::Wire::write_not_null(&self.$field, writer, layout);
                        } else {
                            $crate::codec::Wire::write(&self.$field, writer, layout);
                        }
                    }
                )*
                if layout.flexible {
                    let mut count = 0;
                    $(
                        if message!(@tag $(, $word $($number)?)*).is_some()
                            && message!(@in layout, $first, $($last)?)
                            && self.$field != message!(@default $type, $($default)?)
                        {
                            count += 1;
                        }
                    )*
                    writer.unsigned_varint(count);
                    $(
                        if let Some(tag) = message!(@tag $(, $word $($number)?)*)
                            && message!(@in layout, $first, $($last)?)
                            && self.$field != message!(@default $type, $($default)?)
                        {
                            writer.tagged_field(tag, |writer| {
                                $crate::codec::Wire::write(&self.$field, writer, layout);
                            });
                        }
                    )*
                }
            }

            fn error_codes(&self, layout: $crate::codec::Layout, _tell: &mut impl FnMut(i16, u64)) {
                $(
                    if message!(@in layout, $first, $($last)?) {
                        message!(@tell $field self.$field, layout, _tell);
                    }
                )*
            }
        }

        impl<$life> $crate::codec::Nullable<$life> for $name $($generics)* {
            fn read_nullable(
                cursor: &mut $crate::codec::Cursor<$life>,
                layout: $crate::codec::Layout,
            ) -> Result<Option<Self>, $crate::error::DecodeError> {
                $crate::codec::Wire::read(cursor, layout).and_then(|presence: i8| match presence {
                    -1 => Ok(None),
                    1 => $crate::codec::Wire::read(cursor, layout).map(Some),
                    other => Err($crate::error::DecodeError::BadPresence(other)),
                })
            }

            fn write_nullable(
                value: Option<&Self>,
                writer: &mut $crate::codec::Writer,
                layout: $crate::codec::Layout,
            ) {
                let presence: i8 = if value.is_some() { 1 } else { -1 };
                $crate::codec::Wire::write(&presence, writer, layout);
                if let Some(value) = value {
                    $crate::codec::Wire::write(value, writer, layout);
                }
            }
        }

        #[cfg(feature = "sample")]
        impl<$life> $crate::codec::Sample for $name $($generics)* {
            fn sample(
                sampler: &mut $crate::codec::Sampler,
                layout: $crate::codec::Layout,
            ) -> Self {
                let mut value = Self::default();
                $(
                    if message!(@in layout, $first, $($last)?) {
                        value.$field = if layout.version < message!(@null $(, $word $($number)?)*) {
                            $crate::codec::Sample::sample_not_null(sampler, layout)
                        } else {
                            $crate::codec::Sample::sample(sampler, layout)
                        };
                    }
                )*
                value
            }
        }
    };

    (@default $type:ty, ) => { <$type as $crate::codec::Wire>::initial() };
    (@default $type:ty, $default:expr) => { $default };

    (@tell error_code $value:expr, $layout:expr, $tell:ident) => { $tell($value, 1) };
    (@tell $field:ident $value:expr, $layout:expr, $tell:ident) => {
        $crate::codec::Wire::error_codes(&$value, $layout, $tell)
    };

    (@in $layout:ident, $first:literal, ) => { $layout.version >= $first };
    (@in $layout:ident, $first:literal, $last:literal) => { ($first..=$last).contains(&$layout.version) };

    (@tag) => { None::<u32> };
    (@tag , tag $number:literal $($rest:tt)*) => { Some($number) };
    (@tag , $word:ident $($number:literal)? $(, $($rest:tt)*)?) => { message!(@tag $(, $($rest)*)?) };

    (@null) => { i16::MIN };
    (@null , null $number:literal $($rest:tt)*) => { $number };
    (@null , $word:ident $($number:literal)? $(, $($rest:tt)*)?) => { message!(@null $(, $($rest)*)?) };

    (@ignorable) => { false };
    (@ignorable , ignorable $($rest:tt)*) => { true };
    (@ignorable , $word:ident $($number:literal)? $(, $($rest:tt)*)?) => { message!(@ignorable $(, $($rest)*)?) };
}
