package probe

import "sync/atomic"

// Keyring are keys that may change while probes run. The first one signs, each is accepted. An
// empty key stands for packets without a key. A nil *Keyring has no keys.
type Keyring struct{ keys atomic.Pointer[[][]byte] }

// NewKeyring returns a ring with these keys.
func NewKeyring(keys [][]byte) *Keyring {
	r := &Keyring{}
	r.Set(keys)
	return r
}

// Set replaces the keys.
func (r *Keyring) Set(keys [][]byte) { r.keys.Store(&keys) }

// Get returns the keys. They must not be changed.
func (r *Keyring) Get() [][]byte {
	if r == nil {
		return nil
	}
	if keys := r.keys.Load(); keys != nil {
		return *keys
	}
	return nil
}

// or returns the keys of the ring, and without a ring the other ones.
func (r *Keyring) or(keys [][]byte) [][]byte {
	if r == nil {
		return keys
	}
	return r.Get()
}
