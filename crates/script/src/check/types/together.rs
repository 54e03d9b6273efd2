//! Which types go together, and what they become then.

use super::{Aggregate, Int, Of, Space, Type, field};
use std::sync::Arc;

impl Type {
    /// Whether values of both can be told apart, put in one place and the like.
    pub fn is_compatible(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Int(_) | Type::Enum(..), Type::Int(_) | Type::Enum(..))
            | (Type::String(_), Type::String(_))
            | (Type::Buffer(_), Type::Buffer(_))
            | (Type::Float(_), Type::Float(_)) => true,
            (Type::Pointer(left, _), Type::Pointer(right, _)) => left.is_compatible(right),
            (Type::Tuple(left), Type::Tuple(right)) => {
                left.len() == right.len()
                    && left.iter().zip(right.iter()).all(|(left, right)| left.is_compatible(right))
            }
            (Type::Record(left), Type::Record(right)) => {
                left.len() == right.len()
                    && left.iter().all(|(name, of)| {
                        field(right, name).is_some_and(|(_, other)| of.is_compatible(other))
                    })
            }
            (Type::Array(left, some), Type::Array(right, others)) => {
                left.is_same(right) && (some == others || *some == 0 || *others == 0)
            }
            (Type::Aggregate(left), Type::Aggregate(right)) => left.name() == right.name(),
            (Type::Timestamp(..), Type::Timestamp(..)) => true,
            _ => self == other,
        }
    }

    /// Whether they are one type.
    pub fn is_same(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Int(left), Type::Int(right)) => left.is(*right),
            (Type::Enum(_, left), Type::Enum(_, right)) => left == right,
            (Type::Pointer(left, _), Type::Pointer(right, _)) => left.is_same(right),
            (Type::Array(left, some), Type::Array(right, others)) => some == others && left.is_same(right),
            (Type::Tuple(left), Type::Tuple(right)) => {
                left.len() == right.len() && left.iter().zip(right.iter()).all(|(a, b)| a.is_same(b))
            }
            (Type::Record(left), Type::Record(right)) => {
                left.len() == right.len()
                    && left.iter().zip(right.iter()).all(|(a, b)| a.0 == b.0 && a.1.is_same(&b.1))
            }
            _ => self == other,
        }
    }

    /// What they become together, if they can be together.
    pub fn promoted(&self, new: &Type) -> Option<Type> {
        match (self, new) {
            (Type::None, new) if new.is_number_of_aggregate() => return Some(new.number()),
            (Type::None, new) => return Some(new.clone()),
            (Type::Enum(left, names), Type::Enum(right, others)) if names == others => {
                return Some(Type::Enum(left.promoted(*right), names.clone()));
            }
            // An integer and a float are a float.
            (Type::Float(_), other) | (other, Type::Float(_)) if other.is_int() => {
                return Some(Type::Float(8));
            }
            (Type::Float(left), Type::Float(right)) => return Some(Type::Float(*left.max(right))),
            (left, right) => {
                let of = |of: &Type| if of.is_number_of_aggregate() { of.number() } else { of.clone() };
                let both = matches!((left, right), (Type::Aggregate(_), Type::Aggregate(_)));
                if let (false, Some(left), Some(right)) = (both, of(left).as_int(), of(right).as_int()) {
                    return Some(Type::Int(left.promoted(right)));
                }
            }
        }
        if !self.is_compatible(new) {
            return None;
        }
        Some(match (self, new) {
            (Type::String(left), Type::String(right)) => Type::String(*left.max(right)),
            (Type::Buffer(left), Type::Buffer(right)) => Type::Buffer(*left.max(right)),
            (Type::Pointer(left, space), Type::Pointer(right, other)) => {
                let space = if (space, other) == (&Space::Own, &Space::Own) { Space::Own } else { *other };
                Type::Pointer(Arc::new(left.promoted(right)?), space)
            }
            (Type::Tuple(left), Type::Tuple(right)) => Type::Tuple(
                left.iter().zip(right.iter()).map(|(a, b)| a.promoted(b)).collect::<Option<Vec<_>>>()?.into(),
            ),
            (Type::Record(left), Type::Record(right)) => {
                let both = left.iter().map(|(name, of)| {
                    let (_, other) = field(right, name)?;
                    Some((name.clone(), of.promoted(other)?))
                });
                Type::Record(both.collect::<Option<Vec<_>>>()?.into())
            }
            (Type::Aggregate(left), Type::Aggregate(right)) => Type::Aggregate(left.promoted(*right)),
            (Type::Array(_, 0), new) => new.clone(),
            (current, _) => current.clone(),
        })
    }

    /// Whether each value of it is one of the other's.
    pub fn fits_into(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Int(left) | Type::Enum(left, _), Type::Int(right) | Type::Enum(right, _)) => {
                left.fits_into(*right)
            }
            (Type::String(left), Type::String(right)) | (Type::Buffer(left), Type::Buffer(right)) => {
                left <= right
            }
            (Type::Tuple(left), Type::Tuple(right)) => {
                left.len() == right.len() && left.iter().zip(right.iter()).all(|(a, b)| a.fits_into(b))
            }
            (Type::Record(left), Type::Record(right)) => {
                left.len() == right.len()
                    && left
                        .iter()
                        .all(|(name, of)| field(right, name).is_some_and(|(_, other)| of.fits_into(other)))
            }
            _ => self.is_same(other),
        }
    }
}

impl Int {
    /// What two integer types become together.
    pub fn promoted(self, other: Int) -> Int {
        let size = self.size.max(other.size);
        let flexible = self.flexible && other.flexible;
        let clock = self.clock;
        if self.signed == other.signed {
            return Int { size, signed: self.signed, flexible, clock };
        }
        if self.flexible || other.flexible {
            let signed = (!self.flexible && self.signed) || (!other.flexible && other.signed);
            return Int { size, signed, flexible, clock };
        }
        let (signed, unsigned) = if self.signed { (self, other) } else { (other, self) };
        let size = if signed.size > unsigned.size { signed.size } else { (size * 2).min(8) };
        Int { clock, ..Int::new(size, true) }
    }

    fn fits_into(self, other: Int) -> bool {
        if self.signed == other.signed || self.flexible {
            self.size <= other.size
        } else {
            !self.signed && self.size < other.size
        }
    }
}

impl Aggregate {
    fn promoted(self, other: Aggregate) -> Aggregate {
        match (self.of(), other.of()) {
            (Of::Float, _) | (_, Of::Float) => self.with(Of::Float),
            (Of::Signed, _) | (_, Of::Signed) => self.with(Of::Signed),
            (Of::Unsigned, Of::Unsigned) => self,
        }
    }
}
