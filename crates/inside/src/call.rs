//! What a handler sees of a call, and what it can change.

use std::marker::PhantomData;
use trapless_isa::inside::{Saved, VECTOR_STRIDE};

/// The registers of the integer arguments by their numbers in code: rdi, rsi, rdx, rcx, r8, r9.
const ARGUMENTS: [usize; 6] = [7, 6, 2, 1, 8, 9];
const RAX: usize = 0;
const RSP: usize = 4;

/// A call of a probed function, ahead of its first instruction.
#[derive(Debug)]
pub struct Call<'c> {
    saved: *mut Saved,
    function: u64,
    of_handler: PhantomData<&'c mut Saved>,
}

/// What an integer argument or result may be: an integer, a truth value or a pointer.
pub trait Word: Copy + sealed::Sealed {
    /// What a register holds.
    fn from_register(register: u64) -> Self;
    /// What a register is to hold.
    fn to_register(self) -> u64;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! integers {
    ($($kind:ty)*) => { $(
        impl sealed::Sealed for $kind {}
        impl Word for $kind {
            fn from_register(register: u64) -> Self {
                register as $kind
            }
            fn to_register(self) -> u64 {
                self as u64
            }
        }
    )* };
}

integers! { u8 u16 u32 u64 usize i8 i16 i32 i64 isize }

impl sealed::Sealed for bool {}
impl Word for bool {
    fn from_register(register: u64) -> Self {
        register as u8 != 0
    }
    fn to_register(self) -> u64 {
        self.into()
    }
}

impl<T> sealed::Sealed for *const T {}
impl<T> Word for *const T {
    fn from_register(register: u64) -> Self {
        std::ptr::with_exposed_provenance(register as usize)
    }
    fn to_register(self) -> u64 {
        self.expose_provenance() as u64
    }
}

impl<T> sealed::Sealed for *mut T {}
impl<T> Word for *mut T {
    fn from_register(register: u64) -> Self {
        std::ptr::with_exposed_provenance_mut(register as usize)
    }
    fn to_register(self) -> u64 {
        self.expose_provenance() as u64
    }
}

impl Call<'_> {
    /// # Safety
    /// `saved` is what handling code has saved, and stays until the handler is over.
    pub(crate) unsafe fn new(saved: *mut Saved, function: u64) -> Self {
        Self { saved, function, of_handler: PhantomData }
    }

    fn saved(&self) -> &Saved {
        // SAFETY: it lives as long as the handler runs, and nobody else has it.
        unsafe { &*self.saved }
    }

    fn saved_mut(&mut self) -> &mut Saved {
        // SAFETY: as above.
        unsafe { &mut *self.saved }
    }

    /// The address of the function.
    pub fn function(&self) -> *const () {
        std::ptr::with_exposed_provenance(self.function as usize)
    }

    /// An integer argument or pointer of the C convention, from 0 on: the first six are in registers, others on the stack. What the function does
    /// not have is whatever lies there.
    pub fn arg<T: Word>(&self, number: usize) -> T {
        T::from_register(match ARGUMENTS.get(number) {
            Some(&register) => self.saved().general[register],
            // SAFETY: above the return address lies what the caller has on its stack.
            None => unsafe { self.on_stack(number).read() },
        })
    }

    fn on_stack(&self, number: usize) -> *mut u64 {
        let above = 8 * (1 + number - ARGUMENTS.len());
        std::ptr::with_exposed_provenance_mut(self.stack_pointer() as usize + above)
    }

    /// A floating-point argument of 64 bits, from 0 to 7, which are counted apart from the others.
    ///
    /// # Panics
    /// There are no more than eight in registers.
    pub fn float(&self, number: usize) -> f64 {
        f64::from_bits(self.vector(number))
    }

    /// The same of 32 bits.
    ///
    /// # Panics
    /// There are no more than eight in registers.
    pub fn float32(&self, number: usize) -> f32 {
        f32::from_bits(self.vector(number) as u32)
    }

    fn vector(&self, number: usize) -> u64 {
        // SAFETY: the registers were saved there.
        unsafe { self.vector_at(number).read() }
    }

    fn vector_at(&self, number: usize) -> *mut u64 {
        assert!(number < 8, "there are eight floating-point arguments in registers");
        std::ptr::with_exposed_provenance_mut(self.saved().vectors as usize + VECTOR_STRIDE * number)
    }

    /// Where the call came from: the address behind it.
    pub fn return_address(&self) -> *const () {
        // SAFETY: at an entry the return address is on top of the stack.
        let address =
            unsafe { std::ptr::with_exposed_provenance::<u64>(self.stack_pointer() as usize).read() };
        std::ptr::with_exposed_provenance(address as usize)
    }

    /// The stack pointer, at which the return address lies.
    pub fn stack_pointer(&self) -> u64 {
        self.saved().general[RSP]
    }

    /// Gives the function another argument.
    ///
    /// # Safety
    /// The function can be called with it.
    pub unsafe fn set_arg(&mut self, number: usize, value: impl Word) {
        match ARGUMENTS.get(number) {
            Some(&register) => self.saved_mut().general[register] = value.to_register(),
            // SAFETY: the stack's arguments are the callee's own, and the caller says that there are so many.
            None => unsafe { self.on_stack(number).write(value.to_register()) },
        }
    }

    /// Gives the function another floating-point argument of 64 bits.
    ///
    /// # Safety
    /// The function can be called with it.
    ///
    /// # Panics
    /// There are no more than eight in registers.
    pub unsafe fn set_float(&mut self, number: usize, value: f64) {
        // SAFETY: the registers were saved there.
        unsafe { self.vector_at(number).write(value.to_bits()) }
    }

    /// Skips the call: when all handlers are done, the caller goes on as if the function had returned this.
    ///
    /// # Safety
    /// The caller can go on with it, though nothing was done that the function does.
    pub unsafe fn return_with(&mut self, value: impl Word) {
        let saved = self.saved_mut();
        saved.general[RAX] = value.to_register();
        saved.returns = 1;
    }

    /// The same with a floating-point number of 64 bits.
    ///
    /// # Safety
    /// As [`Self::return_with`].
    pub unsafe fn return_with_float(&mut self, value: f64) {
        // SAFETY: the first vector register is the result's, too.
        unsafe { self.set_float(0, value) };
        self.saved_mut().returns = 1;
    }

    /// Whether a handler has said that the call is skipped.
    pub fn is_skipped(&self) -> bool {
        self.saved().returns != 0
    }
}
