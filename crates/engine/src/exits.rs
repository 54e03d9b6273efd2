//! A function that is followed to its exits is probed at its entry and at all of them, or at none: a call that could leave unseen would
//! be told as one that has not returned.

use crate::{Request, Role};
use std::collections::HashMap;

/// Refuses all sites of an id of which one is refused. Of each item, which is one of a site's: `request` is that of the site, `why` tells
/// why it is refused, and `refuse` is what becomes of it if another one is.
pub(crate) fn keep_whole<'r, 'm: 'r, T, W: Clone>(
    items: &mut [T],
    request: impl Fn(usize) -> &'r Request<'m>,
    why: impl Fn(&T) -> Option<W>,
    refuse: impl Fn(W) -> T,
) {
    let id = |index: usize| Some(request(index)).filter(|r| r.role != Role::Whole).map(|r| r.id);
    let mut broken: HashMap<u32, W> = HashMap::new();
    for (index, item) in items.iter().enumerate() {
        if let Some((id, why)) = why(item).and_then(|why| Some((id(index)?, why))) {
            broken.entry(id).or_insert(why);
        }
    }
    if broken.is_empty() {
        return;
    }
    for (index, item) in items.iter_mut().enumerate() {
        if why(item).is_none()
            && let Some(why) = id(index).and_then(|id| broken.get(&id))
        {
            *item = refuse(why.clone());
        }
    }
}
