//! The chart: one line per figure, one dot per pair, on a logarithmic scale of ratios around 1. Writes text; knows
//! nothing of how the figures came about.

use std::fmt::Write as _;

use super::figures;
use super::report::{Row, Series};
use super::stats::{Better, Spread, Verdict};

const WIDTH: f64 = 1180.0;
const PLOT_LEFT: f64 = 400.0;
const PLOT_RIGHT: f64 = 860.0;
const LINE: f64 = 24.0;
/// Ticks that may appear on the scale.
const TICKS: &[f64] =
    &[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];
const STYLE: &str = "text{font-family:DejaVu Sans,Verdana,sans-serif;font-size:13px;fill:#222}\
    .title{font-size:17px;font-weight:bold}.group{font-weight:bold}.small{font-size:11px;fill:#555}";
const GOOD: &str = "#1b7837";
const BAD: &str = "#b2182b";
const OPEN: &str = "#666666";

/// The chart of all comparisons of a series.
pub fn chart(series: &Series) -> String {
    let groups: Vec<(String, Vec<Row>)> = series
        .scenarios
        .iter()
        .flat_map(|scenario| scenario.contrasts.iter().map(move |contrast| (scenario, contrast)))
        .filter_map(|(scenario, contrast)| {
            let rows: Vec<Row> = contrast.rows().into_iter().filter(|row| row.comparison.is_some()).collect();
            let title = format!("{}: {} / {}", scenario.name, contrast.first, contrast.second.as_deref()?);
            (!rows.is_empty()).then_some((title, rows))
        })
        .collect();
    let scale = Scale::around(groups.iter().flat_map(|(_, rows)| rows));
    let mut body = String::new();
    let mut y = 96.0;
    for (title, rows) in &groups {
        y += 12.0;
        text(&mut body, 16.0, y + 4.0, "group", "start", title);
        y += LINE;
        for row in rows {
            line(&mut body, &scale, y, row);
            y += LINE;
        }
    }
    frame(series, &scale, y, &body)
}

/// Logarithmic, and wide enough for every dot and for 1.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    fn around<'a>(rows: impl Iterator<Item = &'a Row>) -> Self {
        let ratios: Vec<f64> = rows
            .filter_map(|row| row.comparison.as_ref())
            .flat_map(|found| found.ratios.iter().copied())
            .filter(|ratio| *ratio > 0.0 && ratio.is_finite())
            .collect();
        let low = ratios.iter().fold(0.5, |low: f64, ratio| low.min(*ratio)).max(1e-4);
        let high = ratios.iter().fold(2.0, |high: f64, ratio| high.max(*ratio)).min(1e4);
        Self { low: low / 1.15, high: high * 1.15 }
    }

    /// A ratio off the scale, such as zero, is drawn at its end.
    fn x(&self, ratio: f64) -> f64 {
        let part = (ratio.clamp(self.low, self.high).ln() - self.low.ln()) / (self.high.ln() - self.low.ln());
        PLOT_LEFT + part * (PLOT_RIGHT - PLOT_LEFT)
    }
}

fn line(out: &mut String, scale: &Scale, y: f64, row: &Row) {
    let Some(found) = &row.comparison else { return };
    let colour = match found.verdict {
        Verdict::FirstBetter => GOOD,
        Verdict::SecondBetter => BAD,
        Verdict::NoClaim | Verdict::TooFew | Verdict::NotWarm => OPEN,
    };
    let kind = figures::kind(&row.figure);
    let arrow = match kind.map(|kind| kind.better) {
        Some(Better::Higher) => " \u{2191}",
        _ => " \u{2193}",
    };
    text(out, PLOT_LEFT - 14.0, y + 4.0, "", "end", &(figures::label(&row.figure) + arrow));
    let Spread { median, min, max } = found.ratio;
    let (from, to) = (scale.x(min), scale.x(max));
    let _ = writeln!(
        out,
        r#"<line x1="{from:.1}" y1="{y:.1}" x2="{to:.1}" y2="{y:.1}" stroke="{colour}" stroke-width="2"/>"#
    );
    for ratio in &found.ratios {
        let x = scale.x(*ratio);
        let _ =
            writeln!(out, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{colour}" fill-opacity="0.55"/>"#);
    }
    let x = scale.x(median);
    let (top, bottom) = (y - 8.0, y + 8.0);
    let _ = writeln!(
        out,
        r#"<line x1="{x:.1}" y1="{top:.1}" x2="{x:.1}" y2="{bottom:.1}" stroke="{colour}" stroke-width="3"/>"#
    );
    let digits = kind.map_or(3, |kind| kind.digits);
    let said = format!("{median:.2}  ({:.digits$} / {:.digits$})", found.first.median, found.second.median);
    text(out, PLOT_RIGHT + 14.0, y + 4.0, "", "start", &said);
}

fn frame(series: &Series, scale: &Scale, bottom: f64, body: &str) -> String {
    let height = bottom + 64.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {WIDTH} {height:.0}\">\n<style>{STYLE}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\n"
    );
    text(&mut out, 16.0, 28.0, "title", "start", "Ratio of the first side to the second, pair by pair");
    let machine = &series.machine;
    let versions: Vec<String> =
        series.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let about = format!(
        "{} x {}, {}, {}; {}",
        machine.processors,
        machine.processor,
        machine.memory,
        machine.kernel,
        versions.join(", ")
    );
    text(&mut out, 16.0, 48.0, "small", "start", &about);
    let noise = if series.noise_allowed { "NOISE WAS ALLOWED: no claim. " } else { "" };
    let legend = format!(
        "{noise}Dots: pairs; bar: their median. Green: first side better in all pairs; red: second; grey: no claim. \
         Arrows: which way is good."
    );
    text(&mut out, 16.0, 66.0, "small", "start", &legend);
    let (top, end) = (84.0, bottom);
    for tick in TICKS.iter().filter(|tick| (scale.low..=scale.high).contains(*tick)) {
        let x = scale.x(*tick);
        let (stroke, width) = if *tick == 1.0 { ("#222222", 1.5) } else { ("#dddddd", 1.0) };
        let _ = writeln!(
            out,
            r#"<line x1="{x:.1}" y1="{top:.1}" x2="{x:.1}" y2="{end:.1}" stroke="{stroke}" stroke-width="{width}"/>"#
        );
        text(&mut out, x, end + 18.0, "small", "middle", &format!("{tick}"));
    }
    let middle = f64::midpoint(PLOT_LEFT, PLOT_RIGHT);
    text(&mut out, middle, end + 38.0, "small", "middle", "ratio, logarithmic; 1 is equal");
    text(&mut out, PLOT_RIGHT + 14.0, 84.0, "small", "start", "median ratio  (first / second)");
    out.push_str(body);
    out.push_str("</svg>\n");
    out
}

fn text(out: &mut String, x: f64, y: f64, class: &str, anchor: &str, content: &str) {
    let safe = content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ =
        writeln!(out, r#"<text x="{x:.1}" y="{y:.1}" class="{class}" text-anchor="{anchor}">{safe}</text>"#);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::report;

    #[test]
    fn every_measured_pair_of_every_compared_figure_is_a_dot() {
        let drawn = chart(&report::tests::series());
        assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"));
        assert_eq!(
            drawn.matches("<circle").count(),
            8,
            "two figures of four measured pairs; one has no other side"
        );
        assert!(drawn.contains("throughput: odradek / kafka-1g"));
        assert_eq!(drawn.matches("<text").count(), drawn.matches("</text>").count());
    }

    #[test]
    fn the_scale_holds_all_dots_and_the_line_of_equality() {
        let series = report::tests::series();
        let rows = series.scenarios[0].contrasts[0].rows();
        let scale = Scale::around(rows.iter());
        for ratio in [0.225, 0.3, 0.9, 1.0, 1.2] {
            assert!((PLOT_LEFT..=PLOT_RIGHT).contains(&scale.x(ratio)), "{ratio}");
        }
        assert!(scale.x(0.25) < scale.x(1.0));
        assert_eq!(scale.x(0.0), PLOT_LEFT, "a ratio of zero has no logarithm");
    }

    #[test]
    fn names_cannot_break_the_drawing() {
        let mut series = report::tests::series();
        series.scenarios[0].contrasts[0].first = "<b>&".to_owned();
        series.noise_allowed = true;
        let drawn = chart(&series);
        assert!(drawn.contains("&lt;b&gt;&amp;") && !drawn.contains("<b>"));
        assert!(drawn.contains("NOISE WAS ALLOWED"));
    }

    #[test]
    fn a_series_without_comparisons_is_an_empty_chart() {
        let mut series = report::tests::series();
        series.scenarios.clear();
        assert_eq!(chart(&series).matches("<circle").count(), 0);
    }
}
