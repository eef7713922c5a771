//! One value of one key: text to type and back, in Kafka's spelling, and whether the key's range allows it. Knows the
//! table's types, not its rows, and not where a text came from.

use std::fmt;

use super::keys::{Kind, Range};

/// A value of the type that its key has.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of [`Kind::Boolean`].
    Boolean(bool),
    /// Of [`Kind::Int`], [`Kind::Short`] and [`Kind::Long`].
    Integer(i64),
    /// Of [`Kind::Double`]; finite.
    Double(f64),
    /// Of [`Kind::String`] and [`Kind::Class`].
    Text(String),
    /// Of [`Kind::List`].
    List(Vec<String>),
    /// Of [`Kind::Password`]; never printed.
    Secret,
}

impl fmt::Display for Value {
    /// As Kafka prints it in `DescribeConfigs`; nothing for a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::Double(value) => f.write_str(&java_double(*value)),
            Self::Text(value) => f.write_str(value),
            Self::List(items) => f.write_str(&items.join(",")),
            Self::Secret => Ok(()),
        }
    }
}

/// Why a text is no value of its key. Says it as Kafka does, so that tools that compare texts agree.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ValueFault {
    /// Neither `true` nor `false`.
    #[error("Expected value to be either true or false")]
    NotBoolean,
    /// Not a number, or beyond its type.
    #[error("Not a number of type {}", .0.name())]
    NotNumber(Kind),
    /// Below the range.
    #[error("Value must be at least {0}")]
    Below(i64),
    /// Above the range.
    #[error("Value must be no more than {0}")]
    Above(i64),
    /// A text outside the set.
    #[error("String must be one of: {}", .0.join(", "))]
    NotOneOf(&'static [&'static str]),
    /// Not in the form of throttled replicas.
    #[error("must be * or a list of partition:broker")]
    NotReplicas,
    /// Not a release.
    #[error("Version `{0}` is not a valid version")]
    NotRelease(String),
    /// Longer than any sensible value.
    #[error("the value has {0} bytes, more than 1048576")]
    TooLong(usize),
}

/// Bytes of a value at most. Values live in the metadata store and in every image.
const VALUE_BYTES_MAX: usize = 1 << 20;

/// Reads a text as a value of a kind and checks the range. Blanks around it do not count, as in Kafka.
///
/// # Errors
/// What is wrong with the text.
pub fn parse(kind: Kind, range: Range, text: &str) -> Result<Value, ValueFault> {
    if text.len() > VALUE_BYTES_MAX {
        return Err(ValueFault::TooLong(text.len()));
    }
    let text = text.trim_matches(|c: char| c <= ' ');
    let value = match kind {
        Kind::Boolean if text.eq_ignore_ascii_case("true") => Value::Boolean(true),
        Kind::Boolean if text.eq_ignore_ascii_case("false") => Value::Boolean(false),
        Kind::Boolean => return Err(ValueFault::NotBoolean),
        Kind::Short => Value::Integer(text.parse::<i16>().map_err(|_| ValueFault::NotNumber(kind))?.into()),
        Kind::Int => Value::Integer(text.parse::<i32>().map_err(|_| ValueFault::NotNumber(kind))?.into()),
        Kind::Long => Value::Integer(text.parse::<i64>().map_err(|_| ValueFault::NotNumber(kind))?),
        Kind::Double => Value::Double(double(text).ok_or(ValueFault::NotNumber(kind))?),
        Kind::String | Kind::Class => Value::Text(text.to_owned()),
        Kind::Password => Value::Secret,
        Kind::List if text.is_empty() => Value::List(Vec::new()),
        Kind::List => Value::List(text.split(',').map(|item| item.trim().to_owned()).collect()),
    };
    check(range, &value)?;
    Ok(value)
}

/// A finite double as Java reads it: a letter at its end may say that it is one. (Java reads `NaN` too, and no range
/// refuses it; here it is no number.)
fn double(text: &str) -> Option<f64> {
    let digits = text.strip_suffix(['f', 'F', 'd', 'D']).unwrap_or(text);
    let is_number = digits.ends_with(|last: char| last.is_ascii_digit() || last == '.');
    digits.parse::<f64>().ok().filter(|value| is_number && value.is_finite())
}

/// Whether the range allows a value.
fn check(range: Range, value: &Value) -> Result<(), ValueFault> {
    match (range, value) {
        (Range::AtLeast(from), Value::Integer(value)) if *value < from => Err(ValueFault::Below(from)),
        (Range::BetweenOr(other, ..), Value::Integer(value)) if *value == other => Ok(()),
        (Range::Between(from, to) | Range::BetweenOr(_, from, to), Value::Integer(value)) => {
            between(*value, from, to, from, to)
        }
        #[allow(clippy::cast_precision_loss, reason = "ranges of doubles are 0 to 1")]
        (Range::Between(from, to), Value::Double(value)) => between(*value, from as f64, to as f64, from, to),
        (Range::OneOf(texts), Value::Text(text)) if !texts.contains(&text.as_str()) => {
            Err(ValueFault::NotOneOf(texts))
        }
        (Range::OneOfAnyCase(texts), Value::Text(text))
            if !texts.iter().any(|known| known.eq_ignore_ascii_case(text)) =>
        {
            Err(ValueFault::NotOneOf(texts))
        }
        (Range::SubsetOf(texts), Value::List(items))
            if !items.iter().all(|i| texts.contains(&i.as_str())) =>
        {
            Err(ValueFault::NotOneOf(texts))
        }
        (Range::ThrottledReplicas, Value::List(items)) if !are_replicas(items) => {
            Err(ValueFault::NotReplicas)
        }
        (Range::Release, Value::Text(text)) if !is_release(text) => Err(ValueFault::NotRelease(text.clone())),
        _ => Ok(()),
    }
}

fn between<T: PartialOrd>(value: T, low: T, high: T, from: i64, to: i64) -> Result<(), ValueFault> {
    if value < low {
        Err(ValueFault::Below(from))
    } else if value > high {
        Err(ValueFault::Above(to))
    } else {
        Ok(())
    }
}

/// `*` alone, or `partition:broker` each (KIP-73); an item without text at the end does not count, as in Java.
fn are_replicas(items: &[String]) -> bool {
    let ends = items.iter().rposition(|item| !item.is_empty()).map_or(0, |last| last + 1);
    let items = items.get(..ends).unwrap_or_default();
    let is_pair = |item: &String| {
        item.split_once(':').is_some_and(|(partition, broker)| {
            [partition, broker].iter().all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        })
    };
    matches!(items, [only] if only == "*") || items.iter().all(is_pair)
}

/// Releases with the number of their last draft; before 0.10 there were no drafts.
const RELEASES: [(&str, Option<u8>); 29] = [
    ("0.8.0", None),
    ("0.8.1", None),
    ("0.8.2", None),
    ("0.9.0", None),
    ("0.10.0", Some(1)),
    ("0.10.1", Some(2)),
    ("0.10.2", Some(0)),
    ("0.11.0", Some(2)),
    ("1.0", Some(0)),
    ("1.1", Some(0)),
    ("2.0", Some(1)),
    ("2.1", Some(2)),
    ("2.2", Some(1)),
    ("2.3", Some(1)),
    ("2.4", Some(1)),
    ("2.5", Some(0)),
    ("2.6", Some(0)),
    ("2.7", Some(2)),
    ("2.8", Some(1)),
    ("3.0", Some(1)),
    ("3.1", Some(0)),
    ("3.2", Some(0)),
    ("3.3", Some(3)),
    ("3.4", Some(0)),
    ("3.5", Some(2)),
    ("3.6", Some(2)),
    ("3.7", Some(4)),
    ("3.8", Some(0)),
    ("3.9", Some(0)),
];

/// Drafts of the release after Kafka 3.9, which that knows and which has no name without one.
const DRAFTS: [&str; 2] = ["4.0-IV0", "4.0-IV1"];

/// A release that Kafka 3.9 knows, or a draft of one. Numbers beyond those that name a release do not count: `3.9.1` is
/// `3.9`, `0.11.0.3` is `0.11.0`.
fn is_release(text: &str) -> bool {
    let numbers = if text.starts_with("0.") { 3 } else { 2 };
    let segments: Vec<_> = text.trim_end_matches('.').split('.').collect();
    let asked = match segments.get(..numbers) {
        Some(named) if segments.len() > numbers => named.join("."),
        _ => text.to_owned(),
    };
    let is_draft = |name: &str, last: u8| (0..=last).any(|draft| asked == format!("{name}-IV{draft}"));
    DRAFTS.contains(&asked.as_str())
        || RELEASES.iter().any(|(name, last)| asked == *name || last.is_some_and(|last| is_draft(name, last)))
}

/// A double as Java prints it: decimal from 0.001 to 10,000,000, with an exponent beyond.
fn java_double(value: f64) -> String {
    if value == 0.0 || (1e-3..1e7).contains(&value.abs()) {
        return format!("{value:?}");
    }
    let text = format!("{value:E}");
    match text.split_once('E') {
        Some((mantissa, exponent)) if !mantissa.contains('.') => format!("{mantissa}.0E{exponent}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_booleans_are_read_as_java_reads_them() {
        assert_eq!(parse(Kind::Long, Range::Any, " 0012\t"), Ok(Value::Integer(12)));
        assert_eq!(parse(Kind::Boolean, Range::Any, "TRUE"), Ok(Value::Boolean(true)));
        assert_eq!(parse(Kind::Boolean, Range::Any, "yes"), Err(ValueFault::NotBoolean));
        assert_eq!(parse(Kind::Int, Range::Any, "2147483648"), Err(ValueFault::NotNumber(Kind::Int)));
        assert_eq!(parse(Kind::Short, Range::Any, "1.5"), Err(ValueFault::NotNumber(Kind::Short)));
        for (text, value) in [("1f", 1.0), (".5D", 0.5), ("2.", 2.0), ("1e3", 1000.0)] {
            assert_eq!(parse(Kind::Double, Range::Any, text), Ok(Value::Double(value)), "{text}");
        }
        for text in ["NaN", "inf", "f", "1ff", "infinity", "-Infinityd", "", "e", "1l"] {
            let fault = Err(ValueFault::NotNumber(Kind::Double));
            assert_eq!(parse(Kind::Double, Range::Any, text), fault, "{text}");
        }
    }

    #[test]
    fn doubles_print_as_java_prints_them() {
        for (value, text) in [
            (0.5, "0.5"),
            (f64::MAX, "1.7976931348623157E308"),
            (1e7, "1.0E7"),
            (12.0, "12.0"),
            (1e-4, "1.0E-4"),
        ] {
            assert_eq!(Value::Double(value).to_string(), text);
        }
    }

    #[test]
    fn ranges_refuse_with_kafkas_words() {
        let fault = |kind, range, text| parse(kind, range, text).unwrap_err().to_string();
        assert_eq!(fault(Kind::Long, Range::AtLeast(-1), "-2"), "Value must be at least -1");
        assert_eq!(fault(Kind::Int, Range::Between(1, 17), "18"), "Value must be no more than 17");
        assert_eq!(fault(Kind::Double, Range::Between(0, 1), "1.01"), "Value must be no more than 1");
        assert_eq!(fault(Kind::Int, Range::BetweenOr(-1, 1, 9), "0"), "Value must be at least 1");
        assert_eq!(parse(Kind::Int, Range::BetweenOr(-1, 1, 9), "-1"), Ok(Value::Integer(-1)));
        assert_eq!(fault(Kind::String, Range::OneOf(&["a", "b"]), "c"), "String must be one of: a, b");
        assert_eq!(fault(Kind::List, Range::SubsetOf(&["a", "b"]), "a,c"), "String must be one of: a, b");
        assert_eq!(fault(Kind::Long, Range::Any, "x"), "Not a number of type LONG");
    }

    #[test]
    fn lists_lose_blanks_around_items_and_an_empty_text_is_an_empty_list() {
        assert_eq!(parse(Kind::List, Range::Any, " a , b ").unwrap().to_string(), "a,b");
        assert_eq!(parse(Kind::List, Range::Any, "  "), Ok(Value::List(Vec::new())));
    }

    #[test]
    fn throttled_replicas_and_releases_have_their_form() {
        for good in ["*", "", "0:1,12:101", "0:1,", ","] {
            assert!(parse(Kind::List, Range::ThrottledReplicas, good).is_ok(), "{good}");
        }
        for bad in ["*,0:1", "0", "0:", "a:1", "0:1:2", "-1:0", ",0:1", "*,*"] {
            assert!(parse(Kind::List, Range::ThrottledReplicas, bad).is_err(), "{bad}");
        }
        for good in [
            "3.0",
            "3.0-IV1",
            "0.10.2-IV0",
            "3.9.1",
            "0.8.0.1",
            "2.8-IV1.7",
            "3.9.1-IV0",
            "3.7-IV4",
            "4.0-IV1",
            "1.0.x",
        ] {
            assert!(parse(Kind::String, Range::Release, good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "3",
            "x.y",
            "3.0-IV",
            "3.0-SNAPSHOT",
            "0.8",
            "0.8.2-IV0",
            "1.0.",
            "3.0-IV1x",
            "4.0",
            "4.0-IV2",
            "3.10",
            "03.0",
        ] {
            assert!(parse(Kind::String, Range::Release, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_secret_is_never_printed() {
        let value = parse(Kind::Password, Range::Any, "hunter2").unwrap();
        assert_eq!(value.to_string(), "");
        assert!(!format!("{value:?}").contains("hunter2"));
    }
}
