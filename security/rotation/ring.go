package rotation

import (
	"fmt"
	"slices"
	"strings"
)

// MaxKeys bounds the keys of a ring.
const MaxKeys = 8

// The steps to another key.
const (
	Install = "install"
	Use     = "use"
	Remove  = "remove"
)

// Ring are keys that several members share, by their names. The first one is in use. Each key is
// accepted.
type Ring struct {
	Version uint64
	Keys    []string
}

// Step returns the ring after a step with a key. id may be empty for Use and Remove, if only one
// key is possible. waiting are the members that do not have the present ring. With force they hold
// nothing back. Force never removes the key in use.
func (r *Ring) Step(step, id string, waiting *Waiting, force bool) (next Ring, key string, err error) {
	at := slices.Index(r.Keys, id)
	needs := false
	next = Ring{Version: r.Version + 1}
	switch step {
	case Install:
		switch {
		case id == "" || at >= 0:
			return *r, "", fmt.Errorf("%w: the ring has key %q already", ErrStep, id)
		case len(r.Keys) >= MaxKeys:
			return *r, "", fmt.Errorf("%w: the ring has %d keys, at most %d: remove one first", ErrStep, len(r.Keys), MaxKeys)
		}
		next.Keys = append(slices.Clone(r.Keys), id)
	case Use, Remove:
		if id == "" && len(r.Keys) == 2 {
			id, at = r.Keys[1], 1
		}
		switch {
		case id == "":
			return *r, "", fmt.Errorf("%w: the ring has %d keys: name one of %s", ErrStep, len(r.Keys), orNone(strings.Join(r.Keys, ", ")))
		case at < 0:
			return *r, "", fmt.Errorf("%w: the ring has no key %q, only %s", ErrStep, id, orNone(strings.Join(r.Keys, ", ")))
		case at == 0:
			return *r, "", fmt.Errorf("%w: key %s is in use", ErrStep, id)
		}
		needs = true
		rest := slices.Delete(slices.Clone(r.Keys), at, at+1)
		next.Keys = rest
		if step == Use {
			next.Keys = append([]string{id}, rest...)
		}
	default:
		return *r, "", fmt.Errorf("%w: step %q: use %s, %s or %s", ErrStep, step, Install, Use, Remove)
	}
	if needs && !force {
		if err := waiting.check("the step " + step); err != nil {
			return *r, "", err
		}
	}
	return next, id, nil
}
