package rights

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/job/confine"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxNamespaces bounds the stored namespaces of a set.
const maxNamespaces = 1024

// Namespace returns a stored namespace, or an error that wraps ErrUnknown.
func (s *Set) Namespace(name string) (*nusav1.Namespace, error) {
	if n := s.namespaces[name]; n != nil {
		return n, nil
	}
	return nil, unknownNamespace(name)
}

func unknownNamespace(name string) error {
	return fmt.Errorf("namespace %q %w as an object, so it has no limits: `nusa namespace set` makes one", name, ErrUnknown)
}

// Namespaces returns the stored namespaces, sorted by name.
func (s *Set) Namespaces() []*nusav1.Namespace { return s.msg.GetNamespaces() }

// ListNamespaces returns the stored namespaces that a caller may read. The nil Call may read all.
func (s *Set) ListNamespaces(c *Call) []*nusav1.Namespace {
	filtered := c.Filtered()
	var out []*nusav1.Namespace
	for _, n := range s.Namespaces() {
		if !filtered || c.May(n.GetName(), "") {
			out = append(out, n)
		}
	}
	return out
}

// SetNamespace returns the set with a namespace.
func (s *Set) SetNamespace(n *nusav1.Namespace) (*Set, error) {
	if err := confine.Validate(n); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	next := proto.CloneOf(s.msg)
	next.Namespaces = put(next.Namespaces, proto.CloneOf(n), (*nusav1.Namespace).GetName)
	if len(next.Namespaces) > maxNamespaces {
		return nil, fmt.Errorf("%w: there are %d namespaces: remove some", ErrFull, maxNamespaces)
	}
	return s.changed(next, Change{})
}

// RemoveNamespace returns the set without a namespace.
func (s *Set) RemoveNamespace(name string) (*Set, error) {
	return s.without(Change{}, func(next *nusav1.AuthSet) error {
		var found bool
		next.Namespaces, found = drop(next.Namespaces, name, (*nusav1.Namespace).GetName)
		if !found {
			return unknownNamespace(name)
		}
		return nil
	})
}
