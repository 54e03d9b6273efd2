//! What a handler sees of a call, and what it can change.

use crate::{points, times};
use std::marker::PhantomData;
use trapless_isa::inside::{RETURNS, Saved, VECTOR_STRIDE};

/// The registers of the integer arguments by their numbers in code: rdi, rsi, rdx, rcx, r8, r9.
const ARGUMENTS: [usize; 6] = [7, 6, 2, 1, 8, 9];
/// So many arguments are asked for at most: more words of the caller's stack may not be there.
const MOST_ARGUMENTS: usize = 64;
const RAX: usize = 0;
const RDX: usize = 2;
pub(crate) const RSP: usize = 4;

/// A call of a probed function, ahead of its first instruction.
#[derive(Debug)]
pub struct Call<'c>(Waiting<'c>);

/// A call of a probed function that has returned, and whose caller is about to go on.
#[derive(Debug)]
pub struct Return<'r>(Waiting<'r>);

/// A thread that waits for a handler, with its return address, or that of its caller, on top of the stack.
#[derive(Debug)]
struct Waiting<'w> {
    saved: *mut Saved,
    function: u64,
    errno: Errno,
    of_handler: PhantomData<&'w mut Saved>,
}

impl Waiting<'_> {
    fn saved(&self) -> &Saved {
        // SAFETY: it lives as long as the handler runs, and nobody else has it.
        unsafe { &*self.saved }
    }

    fn saved_mut(&mut self) -> &mut Saved {
        // SAFETY: as above.
        unsafe { &mut *self.saved }
    }

    fn function(&self) -> *const () {
        std::ptr::with_exposed_provenance(self.function as usize)
    }

    fn return_address(&self) -> *const () {
        let top = std::ptr::with_exposed_provenance::<u64>(self.saved().general[RSP] as usize);
        // SAFETY: there it is. A function that is followed may have gone on in this one.
        let there = unsafe { top.read() };
        let address = points::home(times::home(self.saved().general[RSP], there));
        std::ptr::with_exposed_provenance(address as usize)
    }

    /// The low part of a vector register.
    fn vector(&self, number: usize) -> *mut u64 {
        std::ptr::with_exposed_provenance_mut(self.saved().vectors as usize + VECTOR_STRIDE * number)
    }
}

/// The thread's `errno`, which is put back when this is dropped: what handlers do does not change it.
#[derive(Debug)]
pub(crate) struct Errno {
    at: *mut i32,
    value: i32,
}

impl Errno {
    pub fn now() -> Self {
        // SAFETY: the call takes nothing, and gives the address of a number of this thread's.
        unsafe {
            let at = libc::__errno_location();
            Self { at, value: *at }
        }
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: as above; the thread is the same one.
        unsafe { *self.at = self.value };
    }
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
        Self(Waiting { saved, function, errno: Errno::now(), of_handler: PhantomData })
    }

    /// The address of the function.
    pub fn function(&self) -> *const () {
        self.0.function()
    }

    /// An integer argument or pointer of the C convention, from 0 on: the first six are in registers, others on the stack. What the function does
    /// not have is whatever lies there.
    ///
    /// # Panics
    /// The number is none of 0 to 63.
    pub fn arg<T: Word>(&self, number: usize) -> T {
        T::from_register(match ARGUMENTS.get(number) {
            Some(&register) => self.0.saved().general[register],
            // SAFETY: above the return address lies what the caller has on its stack.
            None => unsafe { self.on_stack(number).read() },
        })
    }

    fn on_stack(&self, number: usize) -> *mut u64 {
        assert!(number < MOST_ARGUMENTS, "there are arguments 0 to {}", MOST_ARGUMENTS - 1);
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
        self.0.vector(number)
    }

    /// Where the call came from: the address behind it.
    pub fn return_address(&self) -> *const () {
        self.0.return_address()
    }

    /// The stack pointer, at which the return address lies.
    pub fn stack_pointer(&self) -> u64 {
        self.0.saved().general[RSP]
    }

    /// Gives the function another argument.
    ///
    /// # Safety
    /// The function can be called with it.
    ///
    /// # Panics
    /// The number is none of 0 to 63.
    pub unsafe fn set_arg(&mut self, number: usize, value: impl Word) {
        match ARGUMENTS.get(number) {
            Some(&register) => self.0.saved_mut().general[register] = value.to_register(),
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
        let saved = self.0.saved_mut();
        saved.general[RAX] = value.to_register();
        saved.way = RETURNS;
    }

    /// The same with a floating-point number of 64 bits.
    ///
    /// # Safety
    /// As [`Self::return_with`].
    pub unsafe fn return_with_float(&mut self, value: f64) {
        // SAFETY: the first vector register is the result's, too.
        unsafe { self.set_float(0, value) };
        self.0.saved_mut().way = RETURNS;
    }

    /// Whether a handler has said that the call is skipped.
    pub fn is_skipped(&self) -> bool {
        self.0.saved().way == RETURNS
    }

    /// What `errno` is, which handlers leave alone whatever they call.
    pub fn errno(&self) -> i32 {
        self.0.errno.value
    }

    /// Changes it, as for a call that is skipped.
    pub fn set_errno(&mut self, errno: i32) {
        self.0.errno.value = errno;
    }
}

impl Return<'_> {
    /// # Safety
    /// `saved` is what the code of a call's end has saved, and stays until the handler is over.
    pub(crate) unsafe fn new(saved: *mut Saved, function: u64) -> Self {
        Self(Waiting { saved, function, errno: Errno::now(), of_handler: PhantomData })
    }

    /// The address of the function.
    pub fn function(&self) -> *const () {
        self.0.function()
    }

    /// Where its caller goes on.
    pub fn return_address(&self) -> *const () {
        self.0.return_address()
    }

    /// The result, where it is an integer or a pointer of the C convention. That of a function without one is whatever lies there.
    pub fn value<T: Word>(&self) -> T {
        T::from_register(self.0.saved().general[RAX])
    }

    /// The second half of a result of two words.
    pub fn second<T: Word>(&self) -> T {
        T::from_register(self.0.saved().general[RDX])
    }

    /// The result, where it is a floating-point number of 64 bits.
    pub fn float(&self) -> f64 {
        // SAFETY: the registers were saved there.
        f64::from_bits(unsafe { self.0.vector(0).read() })
    }

    /// The same of 32 bits.
    pub fn float32(&self) -> f32 {
        // SAFETY: as above.
        f32::from_bits(unsafe { self.0.vector(0).read() } as u32)
    }

    /// Gives the caller another result.
    ///
    /// # Safety
    /// The caller can go on with it.
    pub unsafe fn set_value(&mut self, value: impl Word) {
        self.0.saved_mut().general[RAX] = value.to_register();
    }

    /// The same with a floating-point number of 64 bits.
    ///
    /// # Safety
    /// As [`Self::set_value`].
    pub unsafe fn set_float(&mut self, value: f64) {
        // SAFETY: the registers were saved there.
        unsafe { self.0.vector(0).write(value.to_bits()) }
    }

    /// What the function has left in `errno`. Handlers leave that alone whatever they call.
    pub fn errno(&self) -> i32 {
        self.0.errno.value
    }

    /// Changes it.
    pub fn set_errno(&mut self, errno: i32) {
        self.0.errno.value = errno;
    }
}
