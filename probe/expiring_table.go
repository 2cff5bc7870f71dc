package probe

import "time"

// expiringTable is a bounded table. An unused entry expires after keep to 2·keep. The
// table never holds more than 2·most entries. Every operation takes the same short time,
// even during a flood of forged keys.
type expiringTable[K comparable, V any] struct {
	most       int
	keep       time.Duration
	young, old map[K]V
	turned     time.Time // when young was made
}

func newExpiringTable[K comparable, V any](most int, keep time.Duration) expiringTable[K, V] {
	return expiringTable[K, V]{most: most, keep: keep, young: make(map[K]V)}
}

// turn drops the old entries and makes the young ones old, if keep has passed.
func (r *expiringTable[K, V]) turn(now time.Time) {
	gone := now.Sub(r.turned)
	if gone >= 0 && gone < r.keep {
		return
	}
	r.old, r.young, r.turned = r.young, make(map[K]V), now
	if gone >= 2*r.keep || gone < 0 {
		r.old = nil
	}
}

// get returns the entry of a key, and renews the entry if there is room.
func (r *expiringTable[K, V]) get(key K, now time.Time) (v V, ok bool) {
	r.turn(now)
	v, ok = r.young[key]
	if ok {
		return v, true
	}
	v, ok = r.old[key]
	if ok {
		r.put(key, v, now)
	}
	return v, ok
}

// put sets the entry of a key. It returns false if there is no room.
func (r *expiringTable[K, V]) put(key K, v V, now time.Time) bool {
	r.turn(now)
	if _, known := r.young[key]; !known && len(r.young) >= r.most {
		return false
	}
	r.young[key] = v
	return true
}
