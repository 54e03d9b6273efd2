//! As much of JSON Schema as `docs/output.schema.json` uses. A field that it does not describe is wrong, too: this is
//! about our own output.

use serde_json::Value;

pub struct Schema(Value);

impl Schema {
    pub fn read() -> Schema {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/output.schema.json");
        Schema(serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
    }

    /// Fails unless the line is one of those described.
    #[track_caller]
    pub fn check(&self, line: &Value) {
        let kind = line["type"].as_str().unwrap_or_else(|| panic!("no type: {line}"));
        let described = self.0["oneOf"].as_array().unwrap();
        assert!(described.iter().any(|kinds| kinds["$ref"] == format!("#/$defs/{kind}")), "{kind}");
        self.value(&self.0["$defs"][kind], line, kind);
    }

    #[track_caller]
    fn value(&self, schema: &Value, value: &Value, at: &str) {
        for (keyword, says) in schema.as_object().unwrap() {
            match keyword.as_str() {
                "description" => {}
                "$ref" => {
                    let name = says.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
                    self.value(&self.0["$defs"][name], value, at);
                }
                "const" => assert_eq!(value, says, "{at}"),
                "enum" => assert!(says.as_array().unwrap().contains(value), "{at}: {value}"),
                "type" => assert!(is_of(says, value), "{at}: {value} is no {says}"),
                "minimum" => assert!(value.as_u64().is_some(), "{at}: {value}"),
                "pattern" => {
                    assert_eq!(says, "^0x[0-9a-f]+$", "another pattern needs another test");
                    let digits = value.as_str().and_then(|text| text.strip_prefix("0x"));
                    assert!(u64::from_str_radix(digits.unwrap(), 16).is_ok(), "{at}: {value}");
                }
                "items" => {
                    value.as_array().unwrap().iter().for_each(|item| self.value(says, item, at));
                }
                "properties" => {
                    for (name, field) in value.as_object().unwrap() {
                        assert!(says.get(name).is_some(), "{at}.{name} is not described");
                        self.value(&says[name], field, &format!("{at}.{name}"));
                    }
                }
                "required" => {
                    for name in says.as_array().unwrap() {
                        assert!(value.get(name.as_str().unwrap()).is_some(), "{at} has no {name}: {value}");
                    }
                }
                other => panic!("the schema says {other}, which this does not know"),
            }
        }
    }
}

fn is_of(kinds: &Value, value: &Value) -> bool {
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{other}"),
    };
    match kinds {
        Value::String(kind) => is(kind),
        kinds => kinds.as_array().unwrap().iter().any(|kind| is(kind.as_str().unwrap())),
    }
}
