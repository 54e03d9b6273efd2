//! Aggregations: `@ = count()` and its kin, which are no values but something that is done to a map.

use super::lossy;
use crate::check::checker::Checker;
use crate::check::tree::{Expr, Key, Stmt};
use crate::check::types::{Aggregate, Of, Type};
use crate::ir::{Aggregation, SeriesOf};
use crate::source::Span;
use crate::syntax::ast::{self, ExprKind};

const NAMES: [&str; 9] = ["count", "sum", "min", "max", "avg", "stats", "hist", "lhist", "tseries"];

impl Checker<'_> {
    /// Whether what is assigned to a map is an aggregation.
    pub fn is_aggregation(&self, value: &ast::Expr) -> bool {
        match &value.kind {
            ExprKind::Call { name, .. } => NAMES.contains(&name.text.as_str()),
            ExprKind::Block(block) => block.value.as_ref().is_some_and(|value| self.is_aggregation(value)),
            _ => false,
        }
    }

    /// `place = function(arguments)`, perhaps at the end of a block.
    pub fn aggregation(&mut self, place: &ast::Place, value: &ast::Expr, span: Span) -> Vec<Stmt> {
        match &value.kind {
            ExprKind::Block(block) => {
                let Some(last) = &block.value else { return Vec::new() };
                self.open();
                let mut statements = self.statements(&ast::Block {
                    statements: block.statements.clone(),
                    value: None,
                    span: block.span,
                });
                let more = self.aggregation(place, last, span);
                statements.statements.extend(more);
                statements.variables = self.close();
                let of = Type::None;
                let kind = crate::check::tree::Kind::Block(Box::new(statements));
                vec![Stmt::Effect(Expr { of, span, kind })]
            }
            ExprKind::Call { name, arguments } => {
                let key = self.map_place(place);
                let (least, most) = match name.text.as_str() {
                    "count" => (0, 0),
                    "hist" => (1, 2),
                    "lhist" => (4, 4),
                    "tseries" => (3, 4),
                    _ => (1, 1),
                };
                if !self.is_arity(&name.text, arguments.len(), least, most, value.span) {
                    return Vec::new();
                }
                let Some(key) = key else { return Vec::new() };
                self.aggregate(key, &name.text, arguments, value.span).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    fn aggregate(&mut self, key: Key, name: &str, arguments: &[ast::Expr], span: Span) -> Option<Stmt> {
        let value = match arguments.first() {
            Some(argument) => {
                let value = self.number_of(argument);
                if value.of.is_none() {
                    return None;
                }
                if !value.of.is_int() && !matches!(value.of, Type::Float(_)) {
                    self.error(
                        span,
                        format!("{name}() only supports integer arguments ({} provided)", value.of),
                    );
                    return None;
                }
                value
            }
            None => Expr::int(Type::INT64, 1, span),
        };
        let of = match &value.of {
            Type::Float(_) => Of::Float,
            other if other.as_int().is_some_and(|int| int.signed) => Of::Signed,
            _ => Of::Unsigned,
        };
        let (aggregate, layout) = match name {
            "count" => (Aggregate::Count, None),
            "sum" => (Aggregate::Sum(of), None),
            "min" => (Aggregate::Min(of), None),
            "max" => (Aggregate::Max(of), None),
            "avg" => (Aggregate::Average(of), None),
            "stats" => (Aggregate::Stats(of), None),
            "hist" => (Aggregate::Hist, Some(self.hist(arguments, span)?)),
            "lhist" => (Aggregate::LinearHist, Some(self.linear(arguments, span)?)),
            _ => (Aggregate::TimeSeries, Some(self.series(arguments, span)?)),
        };
        let of = Type::Aggregate(aggregate);
        let map = self.maps.get(key.map);
        let (map_name, current) = (map.name.clone(), map.value.clone());
        let is_same_kind = match &current {
            Type::None => true,
            Type::Aggregate(known) => known.name() == aggregate.name(),
            _ => false,
        };
        if !is_same_kind || !self.widen_value(key.map, &Type::None) {
            self.error(
                span,
                format!(
                    "Type mismatch for {map_name}: trying to assign value of type '{of}' when map already has a type \
                     '{current}'"
                ),
            );
            return None;
        }
        self.widen_aggregate(&key, aggregate);
        if let Some(layout) = layout {
            let map = self.maps.get_mut(key.map);
            let known = *map.layout.get_or_insert(layout);
            if known != layout {
                self.error(
                    span,
                    match name {
                        "hist" => "Different bits in a single hist unsupported",
                        "lhist" => "Different lhist bounds in a single map unsupported",
                        _ => "Different tseries bounds in a single map unsupported",
                    },
                );
                return None;
            }
        }
        Some(Stmt::Aggregate(key, value, None))
    }

    fn widen_aggregate(&mut self, key: &Key, aggregate: Aggregate) {
        let map = self.maps.get_mut(key.map);
        let new = Type::Aggregate(aggregate);
        let both = match &map.value {
            Type::None => new,
            current => current.promoted(&new).unwrap_or(new),
        };
        if map.value != both {
            map.value = both;
            self.has_changed = true;
        }
    }

    fn hist(&mut self, arguments: &[ast::Expr], span: Span) -> Option<Aggregation> {
        let bits = match arguments.get(1) {
            Some(bits) => self.number_literal("hist", bits, span)?,
            None => 0,
        };
        if bits > 5 {
            self.error(span, format!("hist: bits {bits} must be 0..5"));
            return None;
        }
        Some(Aggregation::Hist { bits: bits as u8 })
    }

    fn linear(&mut self, arguments: &[ast::Expr], span: Span) -> Option<Aggregation> {
        let mut bounds = [0i64; 3];
        for ((bound, argument), what) in
            bounds.iter_mut().zip(arguments.get(1..)?).zip(["min", "max", "step"])
        {
            let value = self.expr(argument);
            let literal = value.literal().and_then(|value| i64::try_from(value).ok());
            match literal.filter(|value| *value >= 0) {
                Some(value) => *bound = value,
                None => {
                    let rule = if what == "step" { "" } else { " (must be non-negative literal)" };
                    self.error(span, format!("lhist: invalid {what} value{rule}"));
                    return None;
                }
            }
        }
        let [min, max, step] = bounds;
        if step <= 0 {
            self.error(span, format!("lhist() step must be >= 1 ({step} provided)"));
            return None;
        }
        let buckets = (i128::from(max) - i128::from(min)) / i128::from(step);
        if buckets > 1000 {
            self.error(span, format!("lhist() too many buckets, must be <= 1000 (would need {buckets})"));
            return None;
        }
        if min > max {
            self.error(span, format!("lhist() min must be less than max (provided min {min} and max {max})"));
            return None;
        }
        if max - min < step {
            let range = max - min;
            self.error(
                span,
                format!(
                    "lhist() step is too large for the given range (provided step {step} for range {range})"
                ),
            );
            return None;
        }
        Some(Aggregation::LinearHist { min, max, step })
    }

    fn series(&mut self, arguments: &[ast::Expr], span: Span) -> Option<Aggregation> {
        self.unstable("tseries", "unstable_tseries", self.settings.unstable_tseries, span);
        let mut numbers = [0u64; 2];
        let names = ["interval_ns", "num_intervals"];
        for ((number, argument), what) in numbers.iter_mut().zip(arguments.get(1..)?).zip(names) {
            let value = self.expr(argument);
            match value.literal().and_then(|value| u64::try_from(value).ok()) {
                Some(0) => {
                    self.error(span, format!("tseries() {what} must be >= 1 (0 provided)"));
                    return None;
                }
                Some(value) => *number = value,
                None => {
                    self.error(span, format!("tseries: invalid {what} value (must be non-negative literal)"));
                    return None;
                }
            }
        }
        let [interval, buckets] = numbers;
        if buckets > 1_000_000 {
            self.error(span, format!("tseries() num_intervals must be < 1000000 ({buckets} provided)"));
            return None;
        }
        let of = match arguments.get(3) {
            None => SeriesOf::Latest,
            Some(argument) => {
                let name = self.text_literal("tseries", argument, span)?;
                match &name[..] {
                    b"avg" => SeriesOf::Average,
                    b"sum" => SeriesOf::Sum,
                    b"max" => SeriesOf::Max,
                    b"min" => SeriesOf::Min,
                    other => {
                        let other = lossy(other);
                        self.error(
                            span,
                            format!(
                                "tseries() expects one of the following aggregation functions: avg, max, min, sum \
                                 (\"{other}\" provided)"
                            ),
                        );
                        return None;
                    }
                }
            }
        };
        Some(Aggregation::TimeSeries { interval, buckets: buckets as u32, of })
    }
}
