//! Scripts of the probe language.

use crate::error::{Failure, answer};
use crate::handlers::Dropped;
use crate::probe::{of, pattern};
use std::ffi::{c_char, c_void};
use std::io::{self, Write};
use std::ptr::null_mut;
use trapless_inside::{Results, Script, ScriptOptions, inside};

/// `trapless_output` of the header.
pub type Output = unsafe extern "C-unwind" fn(text: *const c_char, length: usize, data: *mut c_void);

/// `trapless_script_run` of the header.
pub struct CScript(Script);

/// A function of C that a script prints to. Whoever drops it calls `dropped`.
struct Prints {
    output: Output,
    data: *mut c_void,
    dropped: Option<Dropped>,
}

// SAFETY: the header demands of both functions that another thread can call them with the data, one at a time.
unsafe impl Send for Prints {}

impl Write for Prints {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        print_or_abort(self.output, bytes.as_ptr().cast(), bytes.len(), self.data);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Prints {
    fn drop(&mut self) {
        if let Some(dropped) = self.dropped {
            drop_or_abort(dropped, self.data);
        }
    }
}

extern "C" fn print_or_abort(output: Output, text: *const c_char, length: usize, data: *mut c_void) {
    // SAFETY: the header says so of what it is given.
    unsafe { output(text, length, data) }
}

extern "C" fn drop_or_abort(dropped: Dropped, data: *mut c_void) {
    // SAFETY: as above, and it is called once.
    unsafe { dropped(data) }
}

/// What the data is given back by where there is nothing to print to.
struct Data(*mut c_void, Option<Dropped>);

impl Drop for Data {
    fn drop(&mut self) {
        if let Some(dropped) = self.1 {
            drop_or_abort(dropped, self.0);
        }
    }
}

/// `trapless_script` of the header.
///
/// # Safety
/// As the header says of its arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_script(
    source: *const c_char,
    output: Option<Output>,
    data: *mut c_void,
    dropped: Option<Dropped>,
) -> *mut CScript {
    answer(null_mut(), move || {
        let options = match output {
            Some(output) => ScriptOptions::default().output(Prints { output, data, dropped }),
            None => {
                drop(Data(data, dropped));
                ScriptOptions::default()
            }
        };
        // SAFETY: as the caller says.
        let source = unsafe { pattern(source) }?;
        Ok(Box::into_raw(Box::new(CScript(inside()?.script_with(source, options)?))))
    })
}

/// `trapless_script_functions` of the header.
///
/// # Safety
/// It is null, or a script that is not stopped meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_script_functions(script: *const CScript) -> usize {
    // SAFETY: as the caller says.
    unsafe { of(script, 0, |script| script.0.functions()) }
}

/// `trapless_script_is_over` of the header.
///
/// # Safety
/// It is null, or a script that is not stopped meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_script_is_over(script: *const CScript) -> bool {
    // SAFETY: as the caller says.
    unsafe { of(script, false, |script| script.0.is_over()) }
}

/// Writes one form of a script's maps, as much of it as there is room for.
///
/// # Safety
/// It is null, or a script that is not stopped meanwhile; `text` is null, or has `room`.
unsafe fn written(
    script: *const CScript,
    text: *mut c_char,
    room: usize,
    form: impl FnOnce(Results) -> String,
) -> usize {
    // SAFETY: as the caller says.
    let script = unsafe { script.as_ref() };
    let Some(script) = script else { return 0 };
    answer(usize::MAX, || {
        let form = form(script.0.results().map_err(Failure::from)?);
        if !text.is_null() && room > 0 {
            let length = form.len().min(room - 1);
            // SAFETY: there is room for it and the final 0, as the caller says.
            unsafe {
                text.cast::<u8>().copy_from_nonoverlapping(form.as_ptr(), length);
                text.add(length).write(0);
            }
        }
        Ok(form.len())
    })
}

/// `trapless_script_text` of the header.
///
/// # Safety
/// It is null, or a script that is not stopped meanwhile; `text` is null, or has `room` for so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_script_text(
    script: *const CScript,
    text: *mut c_char,
    room: usize,
) -> usize {
    // SAFETY: as the caller says.
    unsafe { written(script, text, room, |results| results.text) }
}

/// `trapless_script_json` of the header.
///
/// # Safety
/// It is null, or a script that is not stopped meanwhile; `text` is null, or has `room` for so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_script_json(
    script: *const CScript,
    text: *mut c_char,
    room: usize,
) -> usize {
    // SAFETY: as the caller says.
    unsafe { written(script, text, room, |results| results.json) }
}

/// `trapless_script_stop` of the header.
///
/// # Safety
/// It is null, or a script that was not stopped yet; nobody uses it meanwhile or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trapless_script_stop(script: *mut CScript) -> bool {
    if script.is_null() {
        return false;
    }
    // SAFETY: as the caller says, and it was made so.
    let script = unsafe { Box::from_raw(script) };
    answer(false, || script.0.stop().map(|_| true).map_err(Failure::from))
}
