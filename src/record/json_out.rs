//! A writer for our own JSON documents that can carry a stored JSON text unchanged, which a parsed value could not.

/// Writes the members of one object in the order they are given.
pub(crate) struct Object {
    out: String,
    /// The next member is the first of its object.
    first: bool,
}

/// The text of one object.
pub(crate) fn object(build: impl FnOnce(&mut Object)) -> String {
    object_of(256, build)
}

/// The same, for an object that will have about this many bytes.
pub(crate) fn object_of(bytes: usize, build: impl FnOnce(&mut Object)) -> String {
    let mut object = Object { out: String::with_capacity(bytes), first: true };
    object.nested(build);
    object.out
}

/// The text of one array of JSON texts.
pub(crate) fn array(items: impl IntoIterator<Item = String>) -> String {
    let mut out = "[".to_owned();
    for item in items {
        if out.len() > 1 {
            out.push(',');
        }
        out.push_str(&item);
    }
    out.push(']');
    out
}

/// The text of one string.
pub(crate) fn string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_string(&mut out, text);
    out
}

fn push_string(out: &mut String, text: &str) {
    if text.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
        // Only UTF-8 was quoted, so nothing is replaced here.
        out.push_str(&String::from_utf8_lossy(&crate::wire::splice::quote(text)));
    } else {
        out.push('"');
        out.push_str(text);
        out.push('"');
    }
}

impl Object {
    /// A member whose value is this JSON text.
    pub(crate) fn raw(&mut self, name: &str, json: &str) -> &mut Object {
        self.name(name).out.push_str(json);
        self
    }

    pub(crate) fn text(&mut self, name: &str, text: &str) -> &mut Object {
        push_string(&mut self.name(name).out, text);
        self
    }

    /// A number or a boolean.
    pub(crate) fn plain(&mut self, name: &str, value: impl std::fmt::Display) -> &mut Object {
        use std::fmt::Write;
        // A string takes every write.
        let _ = write!(self.name(name).out, "{value}");
        self
    }

    pub(crate) fn null(&mut self, name: &str) -> &mut Object {
        self.raw(name, "null")
    }

    pub(crate) fn object(&mut self, name: &str, build: impl FnOnce(&mut Object)) -> &mut Object {
        self.name(name).nested(build);
        self
    }

    fn name(&mut self, name: &str) -> &mut Object {
        if !std::mem::take(&mut self.first) {
            self.out.push(',');
        }
        push_string(&mut self.out, name);
        self.out.push(':');
        self
    }

    /// The value of the member whose name was written last, or the whole object.
    fn nested(&mut self, build: impl FnOnce(&mut Object)) {
        self.out.push('{');
        self.first = true;
        build(self);
        self.out.push('}');
        self.first = false;
    }
}
