package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Bounds of one instance. A job file has the same bounds.
const (
	MaxTags = 16
	// maxText bounds the names of an instance, in bytes.
	maxText = 255
)

// ErrInvalid means that an instance or a name is malformed.
var ErrInvalid = errors.New("malformed")

// Instance is one healthy instance of a service.
type Instance struct {
	Namespace, Service string
	Tags               []string // sorted
	Region, Node       string
	Address            string // an IP address
	Port               int32  // 1..65535
	Alloc              string
	Job, Group         string
	Index              int32
}

// Key identifies an instance in its region.
func (i *Instance) Key() string { return i.Alloc + "/" + i.Service }

// Size returns the approximate size of the instance in memory and in a message, in bytes.
func (i *Instance) Size() int {
	const numbers = 64
	n := numbers + len(i.Namespace) + len(i.Service) + len(i.Region) + len(i.Node) + len(i.Address) + len(i.Alloc) + len(i.Job) + len(i.Group)
	for _, t := range i.Tags {
		n += len(t) + 2
	}
	return n
}

// Equal reports whether all fields are equal.
func (i *Instance) Equal(o *Instance) bool {
	return i.Namespace == o.Namespace && i.Service == o.Service && slices.Equal(i.Tags, o.Tags) && i.Region == o.Region && i.Node == o.Node &&
		i.Address == o.Address && i.Port == o.Port && i.Alloc == o.Alloc && i.Job == o.Job && i.Group == o.Group && i.Index == o.Index
}

// Check returns an error if an instance from another machine is malformed.
func (i *Instance) Check() error {
	for _, text := range []string{i.Namespace, i.Region, i.Alloc, i.Job, i.Group} {
		if text == "" || len(text) > maxText {
			return fmt.Errorf("%w instance of service %.64q: a name is missing or too long", ErrInvalid, i.Service)
		}
	}
	if !IsLabel(i.Service) || len(i.Node) > maxText || len(i.Tags) > MaxTags {
		return fmt.Errorf("%w instance of service %.64q in namespace %.64q", ErrInvalid, i.Service, i.Namespace)
	}
	for _, t := range i.Tags {
		if !IsLabel(t) {
			return fmt.Errorf("%w tag %.64q of service %q", ErrInvalid, t, i.Service)
		}
	}
	if _, err := netip.ParseAddr(i.Address); err != nil || i.Port < 1 || i.Port > 65535 {
		return fmt.Errorf("%w address %.64q, port %d of service %q", ErrInvalid, i.Address, i.Port, i.Service)
	}
	return nil
}

// Compare orders the instances of one service in one region.
func Compare(a, b *Instance) int {
	return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Index, b.Index), cmp.Compare(a.Alloc, b.Alloc))
}

// IsLabel reports whether a text is a DNS label in lower case: 1 to 63 letters, digits and hyphens,
// with a letter or a digit at both ends.
func IsLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
