//! Times as text, by the formats of `strftime`.

use super::resolve::{Resolver, Zone};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A point in time as calendars and clocks show it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Calendar {
    /// Seconds since 1970, in UTC.
    seconds: i64,
    year: i64,
    /// From 0.
    month: i64,
    /// From 1.
    day: i64,
    /// From 0.
    day_of_year: i64,
    /// From Sunday, 0.
    weekday: i64,
    hour: i64,
    minute: i64,
    second: i64,
    zone: Zone,
}

impl Calendar {
    /// The calendar is the proleptic Gregorian one.
    fn new(seconds: i64, zone: Zone) -> Calendar {
        let local = seconds.saturating_add(zone.offset.into());
        let (days, of_day) = (local.div_euclid(86_400), local.rem_euclid(86_400));
        // Eras of 400 years begin on the 1st of March, so that the leap day is the last of a year.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_from_march + 2) / 153;
        let day = day_from_march - (153 * month_from_march + 2) / 5 + 1;
        let month = (month_from_march + 2) % 12;
        let year = year_of_era + 400 * era + i64::from(month < 2);
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        // March is the 60th or 61st day.
        let before_march = 59 + i64::from(is_leap);
        let day_of_year = match month < 2 {
            true => day_from_march - 306,
            false => day_from_march + before_march,
        };
        Calendar {
            seconds,
            year,
            month,
            day,
            day_of_year,
            weekday: (days + 4).rem_euclid(7),
            hour: of_day / 3600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
            zone,
        }
    }

    /// Year and number of the week by ISO 8601: the week's Thursday says which year it is in.
    fn week(&self) -> (i64, i64) {
        let from_monday = (self.weekday + 6) % 7;
        let thursday = self.day_of_year + 3 - from_monday;
        let length = |year: i64| 365 + i64::from(year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
        match thursday {
            _ if thursday < 0 => (self.year - 1, (thursday + length(self.year - 1)) / 7 + 1),
            _ if thursday >= length(self.year) => (self.year + 1, 1),
            _ => (self.year, thursday / 7 + 1),
        }
    }

    fn hour_of_twelve(&self) -> i64 {
        (self.hour + 11) % 12 + 1
    }
}

/// How a number is padded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pad {
    Zero,
    Blank,
    None,
}

fn padded(number: i64, width: usize, pad: Pad) -> String {
    match pad {
        Pad::Zero => format!("{number:0width$}"),
        Pad::Blank => format!("{number:width$}"),
        Pad::None => number.to_string(),
    }
}

/// Formats a time of the wall as `strftime` does in the C locale. What it does not know is left as it is.
pub(super) fn format(format: &str, nanoseconds: i64, resolver: &mut dyn Resolver) -> String {
    let seconds = nanoseconds.div_euclid(1_000_000_000);
    let calendar = Calendar::new(seconds, resolver.zone(seconds));
    let mut out = String::new();
    expand(format, &calendar, &mut out);
    out
}

/// Formats a point in time for the language's `strftime`, which has `%f` for microseconds, `%l` for milliseconds and `%k` for nanoseconds.
/// The first second of 1970 is none.
pub(super) fn stamp(text: &str, nanoseconds: i64, resolver: &mut dyn Resolver) -> String {
    if nanoseconds.div_euclid(1_000_000_000) == 0 {
        return "(?)".into();
    }
    let rest = nanoseconds.rem_euclid(1_000_000_000);
    let text = text
        .replace("%f", &format!("{:06}", rest / 1000))
        .replace("%k", &format!("{rest:09}"))
        .replace("%l", &format!("{:03}", rest / 1_000_000));
    format(&text, nanoseconds, resolver)
}

/// `hh:mm:ss` of a time in the local zone.
pub(super) fn clock(nanoseconds: i64, resolver: &mut dyn Resolver) -> String {
    format("%H:%M:%S", nanoseconds, resolver)
}

/// Date and time of a time in UTC, with nanoseconds.
pub(super) fn utc(nanoseconds: i64) -> String {
    let calendar = Calendar::new(nanoseconds.div_euclid(1_000_000_000), Zone::default());
    let mut out = String::new();
    expand("%Y-%m-%d %H:%M:%S", &calendar, &mut out);
    format!("{out}.{:09}", nanoseconds.rem_euclid(1_000_000_000))
}

fn expand(format: &str, calendar: &Calendar, out: &mut String) {
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let whole = &rest[at..];
        let mut letters = whole[1..].chars();
        let (mut pad, mut is_upper, mut letter) = (None, false, letters.next());
        loop {
            match letter {
                Some('-') => pad = Some(Pad::None),
                Some('_') => pad = Some(Pad::Blank),
                Some('0') => pad = Some(Pad::Zero),
                Some('^') => is_upper = true,
                // Modifiers for other locales.
                Some('E' | 'O' | '#') => {}
                _ => break,
            }
            letter = letters.next();
        }
        let expanded = letter.and_then(|letter| field(letter, pad, calendar));
        match expanded {
            Some(text) if is_upper => out.push_str(&text.to_uppercase()),
            Some(text) => out.push_str(&text),
            None => out.push_str(&whole[..whole.len() - letters.as_str().len()]),
        }
        rest = letters.as_str();
    }
    out.push_str(rest);
}

fn field(letter: char, pad: Option<Pad>, calendar: &Calendar) -> Option<String> {
    let zero = pad.unwrap_or(Pad::Zero);
    let blank = pad.unwrap_or(Pad::Blank);
    let more = |format: &str| {
        let mut out = String::new();
        expand(format, calendar, &mut out);
        out
    };
    let name = |names: &[&str], index: i64, most: usize| {
        names.get(index as usize).map(|name| name[..most.min(name.len())].to_string())
    };
    Some(match letter {
        'a' => name(&DAYS, calendar.weekday, 3)?,
        'A' => name(&DAYS, calendar.weekday, 9)?,
        'b' | 'h' => name(&MONTHS, calendar.month, 3)?,
        'B' => name(&MONTHS, calendar.month, 9)?,
        'c' => more("%a %b %e %H:%M:%S %Y"),
        'C' => padded(calendar.year.div_euclid(100), 2, zero),
        'd' => padded(calendar.day, 2, zero),
        'D' | 'x' => more("%m/%d/%y"),
        'e' => padded(calendar.day, 2, blank),
        'F' => more("%Y-%m-%d"),
        'g' => padded(calendar.week().0.rem_euclid(100), 2, zero),
        'G' => calendar.week().0.to_string(),
        'H' => padded(calendar.hour, 2, zero),
        'I' => padded(calendar.hour_of_twelve(), 2, zero),
        'j' => padded(calendar.day_of_year + 1, 3, zero),
        'k' => padded(calendar.hour, 2, blank),
        'l' => padded(calendar.hour_of_twelve(), 2, blank),
        'm' => padded(calendar.month + 1, 2, zero),
        'M' => padded(calendar.minute, 2, zero),
        'n' => "\n".into(),
        'p' => if calendar.hour < 12 { "AM" } else { "PM" }.into(),
        'P' => if calendar.hour < 12 { "am" } else { "pm" }.into(),
        'r' => more("%I:%M:%S %p"),
        'R' => more("%H:%M"),
        's' => calendar.seconds.to_string(),
        'S' => padded(calendar.second, 2, zero),
        't' => "\t".into(),
        'T' | 'X' => more("%H:%M:%S"),
        'u' => ((calendar.weekday + 6) % 7 + 1).to_string(),
        'U' => padded((calendar.day_of_year + 7 - calendar.weekday) / 7, 2, zero),
        'V' => padded(calendar.week().1, 2, zero),
        'w' => calendar.weekday.to_string(),
        'W' => padded((calendar.day_of_year + 7 - (calendar.weekday + 6) % 7) / 7, 2, zero),
        'y' => padded(calendar.year.rem_euclid(100), 2, zero),
        'Y' => calendar.year.to_string(),
        'z' => {
            let minutes = calendar.zone.offset / 60;
            let sign = if minutes < 0 { '-' } else { '+' };
            format!("{sign}{:02}{:02}", minutes.abs() / 60, minutes.abs() % 60)
        }
        'Z' => calendar.zone.name.clone(),
        '%' => "%".into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64, text: &str) -> String {
        let calendar = Calendar::new(seconds, Zone { offset: 5400, name: "X".into() });
        let mut out = String::new();
        expand(text, &calendar, &mut out);
        out
    }

    #[test]
    fn formats_of_strftime() {
        // 2024-02-29 22:43:21 UTC, a Thursday: the next day in this zone.
        let seconds = 1_709_246_601;
        for (text, expected) in [
            ("%Y-%m-%d %H:%M:%S", "2024-03-01 00:13:21"),
            ("%a %A|%b %B|%h", "Fri Friday|Mar March|Mar"),
            ("%c", "Fri Mar  1 00:13:21 2024"),
            ("%e|%-d|%_m|%0e|%k|%l|%I", " 1|1| 3|01| 0|12|12"),
            ("%j %u %w %U %W %V %G %g", "061 5 5 08 09 09 2024 24"),
            ("%C%y %D %x %F %T %X %R", "2024 03/01/24 03/01/24 2024-03-01 00:13:21 00:13:21 00:13"),
            ("%r %p %P %^a", "12:13:21 AM AM am FRI"),
            ("%s %z %Z", "1709246601 +0130 X"),
            ("100%% %n%t %Q %", "100% \n\t %Q %"),
            ("%Ey %Om ä%Hü", "24 03 ä00ü"),
        ] {
            assert_eq!(at(seconds, text), expected, "{text}");
        }
    }

    #[test]
    fn days_of_all_years() {
        for (seconds, expected) in [
            (0, "1970-01-01 001 4"),
            (-86_400, "1969-12-31 365 3"),
            (951_782_400, "2000-02-29 060 2"),
            (978_220_800, "2000-12-31 366 0"),
            (4_107_542_400, "2100-03-01 060 1"),
        ] {
            let calendar = Calendar::new(seconds, Zone::default());
            let mut out = String::new();
            expand("%F %j %w", &calendar, &mut out);
            assert_eq!(out, expected);
        }
        for (seconds, expected) in
            [(1_230_768_000, "2009-W01-4"), (1_262_304_000, "2009-W53-5"), (1_230_422_400, "2008-W52-7")]
        {
            let calendar = Calendar::new(seconds, Zone::default());
            let mut out = String::new();
            expand("%G-W%V-%u", &calendar, &mut out);
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn the_ends_of_time_are_no_reason_to_stop() {
        for seconds in [i64::MIN, i64::MAX, i64::MIN / 1_000_000_000] {
            assert!(!at(seconds, "%c %G %V %U %j").is_empty());
        }
        assert_eq!(utc(-1), "1969-12-31 23:59:59.999999999");
    }
}
