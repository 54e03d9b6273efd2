//! Values as their types in the debug information say.

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// A call's arguments and result as their types say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypedCall {
    /// The arguments, in order; nothing where they were not seen, as of a call that was there before its probe.
    pub arguments: Option<Vec<TypedValue>>,
    /// The result, at a return of a function that gives one.
    pub result: Option<TypedValue>,
}

/// A value as its type says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedValue {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its type, as its language writes it.
    pub of: String,
    /// The value, as its language writes it, or why it is not known.
    pub text: Result<String, String>,
}

impl Serialize for TypedValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("TypedValue", 4)?;
        if let Some(name) = &self.name {
            object.serialize_field("name", name)?;
        }
        object.serialize_field("type", &self.of)?;
        match &self.text {
            Ok(text) => object.serialize_field("text", text)?,
            Err(why) => {
                object.serialize_field("text", &None::<&str>)?;
                object.serialize_field("reason", why)?;
            }
        }
        object.end()
    }
}
