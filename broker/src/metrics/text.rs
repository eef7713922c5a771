//! Prometheus' text exposition format, version 0.0.4: families in the order of the table, each with its help and type,
//! labels escaped. A summary tells the quantiles of a window, and the count and sum of everything.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::histogram::Counts;
use super::names::Family;
use super::snapshot::{Labels, Value};

/// What the text is, as HTTP says it.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Quantiles that are told: as the label says it, and in thousandths.
const QUANTILES: [(&str, u64); 6] =
    [("0.50", 500), ("0.75", 750), ("0.95", 950), ("0.98", 980), ("0.99", 990), ("0.999", 999)];

/// Values by name and labels: no series can be there twice.
pub type Values = BTreeMap<(Family, Labels), Value>;

/// Writes all values. Quantiles are those of what came since `earlier`.
pub fn write(values: &Values, earlier: Option<&Values>) -> String {
    let mut text = String::with_capacity(values.len().saturating_mul(96));
    let mut family = None;
    for (key, value) in values {
        if family.replace(key.0) != Some(key.0) {
            let (name, kind) = (key.0.name(), key.0.kind().name());
            let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", key.0.help());
        }
        let before = earlier.and_then(|earlier| earlier.get(key));
        match (value, before) {
            (Value::Whole(number), _) => line(&mut text, key, "", None, number),
            (Value::Real(number), _) => line(&mut text, key, "", None, number),
            (Value::Times(counts), Some(Value::Times(before))) => {
                summary(&mut text, key, counts, before, 1e3)
            }
            (Value::Times(counts), _) => summary(&mut text, key, counts, &Counts::default(), 1e3),
            (Value::Sizes(counts), Some(Value::Sizes(before))) => {
                summary(&mut text, key, counts, before, 1.0)
            }
            (Value::Sizes(counts), _) => summary(&mut text, key, counts, &Counts::default(), 1.0),
        }
    }
    text
}

fn summary(text: &mut String, key: &(Family, Labels), counts: &Counts, before: &Counts, unit: f64) {
    let window = counts.since(before);
    for (label, thousandths) in QUANTILES {
        let value = window.quantile(thousandths).map_or(f64::NAN, |value| value / unit);
        line(text, key, "", Some(label), value);
    }
    #[allow(clippy::cast_precision_loss, reason = "a sum of microseconds is exact for 285 years")]
    line(text, key, "_sum", None, counts.sum() as f64 / unit);
    line(text, key, "_count", None, counts.count());
}

fn line(
    text: &mut String,
    (family, labels): &(Family, Labels),
    suffix: &str,
    quantile: Option<&str>,
    value: impl std::fmt::Display,
) {
    text.push_str(family.name());
    text.push_str(suffix);
    let labels = labels.iter().map(|(name, value)| (*name, &**value));
    let mut opened = false;
    for (name, value) in labels.chain(quantile.map(|quantile| ("quantile", quantile))) {
        text.push(if opened { ',' } else { '{' });
        opened = true;
        text.push_str(name);
        text.push_str("=\"");
        escape(text, value);
        text.push('"');
    }
    let end = if opened { "} " } else { " " };
    let _ = writeln!(text, "{end}{value}");
}

fn escape(text: &mut String, value: &str) {
    for letter in value.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}
