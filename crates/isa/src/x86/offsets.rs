//! What is known at some of the offsets in a piece of code.

use alloc::{vec, vec::Vec};

/// Values by offset. Looked up at each instruction, so by the offset itself, at four bytes for each byte of the code.
pub(super) struct ByOffset<T> {
    /// By offset: the place in `values`, from 1 on; 0 where there is none.
    places: Vec<u32>,
    values: Vec<T>,
}

impl<T> ByOffset<T> {
    /// Of code of so many bytes. There may be a value behind the last one.
    pub fn new(length: usize) -> Self {
        Self { places: vec![0; length + 1], values: Vec::new() }
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    pub fn get(&self, offset: u64) -> Option<&T> {
        self.values.get(self.place(offset)?)
    }

    pub fn get_mut(&mut self, offset: u64) -> Option<&mut T> {
        let place = self.place(offset)?;
        self.values.get_mut(place)
    }

    /// Adds the first value at an offset.
    ///
    /// # Panics
    /// The offset lies behind the code.
    pub fn insert(&mut self, offset: u64, value: T) -> &mut T {
        self.values.push(value);
        let place = self.values.len() - 1;
        self.places[offset as usize] = place as u32 + 1;
        &mut self.values[place]
    }

    /// All values with their offsets, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let value = |place: &u32| self.values.get((*place as usize).checked_sub(1)?);
        (0..).zip(&self.places).filter_map(move |(offset, place)| Some((offset, value(place)?)))
    }

    fn place(&self, offset: u64) -> Option<usize> {
        let place = *self.places.get(usize::try_from(offset).ok()?)?;
        (place as usize).checked_sub(1)
    }
}
