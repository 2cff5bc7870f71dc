package origin

import (
	"errors"
	"fmt"
	"strings"
)

// Bounds of domain names (RFC 1035, 2.3.4), and of the records of a table.
const (
	MaxDomain  = 253
	MaxLabel   = 63
	MaxRecords = 10_000
)

// Errors of a domain, a pattern or a table. The text of a wrapping error has the domain.
var (
	ErrDomainLength = errors.New("a domain has 1..253 characters")
	ErrLabelLength  = errors.New("a label has 1..63 characters")
	ErrLabel        = errors.New("a label is letters, digits and inner hyphens (others in their xn-- form)")
	ErrAddress      = errors.New("is an address, not a domain")
	ErrWildcard     = errors.New("a wildcard is the whole first label, and a domain follows")
	ErrDuplicate    = errors.New("has two records")
	ErrTooMany      = errors.New("too many")
	ErrNoRecord     = errors.New("no record covers the domain")
)

// Record lists the origins of a domain.
type Record struct {
	// Pattern is a domain, or "*." and a domain. The latter means every name below that
	// domain, at any depth, but not the domain itself (as in RFC 4592). Case and a last
	// dot do not matter.
	Pattern string
	// Origins has 1..MaxOrigins origins, each region once.
	Origins []Origin
}

// Table finds the record of a domain. It is immutable and safe for concurrent use. A
// look-up costs one map read for each label of the domain.
type Table struct {
	exact    map[string]Record
	wildcard map[string]Record // by the part after "*."
}

// NewTable checks the records, at most MaxRecords, and returns a table of them. The table
// retains the slices of the records, so the caller must not change them.
func NewTable(records []Record) (*Table, error) {
	if len(records) > MaxRecords {
		return nil, fmt.Errorf("%w: %d domain records, at most %d", ErrTooMany, len(records), MaxRecords)
	}
	t := &Table{exact: map[string]Record{}, wildcard: map[string]Record{}}
	for _, r := range records {
		pattern, err := ParsePattern(r.Pattern)
		if err != nil {
			return nil, err
		}
		if err := checkOrigins(r.Origins); err != nil {
			return nil, fmt.Errorf("domain %q: %w", pattern, err)
		}
		r.Pattern = pattern
		into, key := t.exact, pattern
		if rest, ok := strings.CutPrefix(pattern, "*."); ok {
			into, key = t.wildcard, rest
		}
		if _, twice := into[key]; twice {
			return nil, fmt.Errorf("domain %q: %w", pattern, ErrDuplicate)
		}
		into[key] = r
	}
	return t, nil
}

// Match returns the most specific record for a domain: the record of the domain itself, or
// else the wildcard with the most labels. Errors are ErrNoRecord and those of ParseDomain.
func (t *Table) Match(domain string) (Record, error) {
	name, err := ParseDomain(domain)
	if err != nil {
		return Record{}, err
	}
	if r, ok := t.exact[name]; ok {
		return r, nil
	}
	for rest := name; ; {
		_, after, more := strings.Cut(rest, ".")
		if !more {
			return Record{}, fmt.Errorf("domain %q: %w", name, ErrNoRecord)
		}
		if r, ok := t.wildcard[after]; ok {
			return r, nil
		}
		rest = after
	}
}

// ParsePattern returns the canonical form of a domain or of "*." and a domain.
// Errors are ErrWildcard and those of ParseDomain.
func ParsePattern(pattern string) (string, error) {
	rest, wild := strings.CutPrefix(pattern, "*.")
	if strings.Contains(rest, "*") || wild && rest == "" {
		return "", fmt.Errorf("domain %q: %w", clip(pattern), ErrWildcard)
	}
	name, err := ParseDomain(rest)
	if err != nil || !wild {
		return name, err
	}
	if len(name)+2 > MaxDomain {
		return "", fmt.Errorf("domain %q: %w", clip(pattern), ErrDomainLength)
	}
	return "*." + name, nil
}

// ParseDomain returns the canonical form of a host name (RFC 1123, 2.1): lower
// case, without the last dot. Errors are ErrDomainLength, ErrLabelLength,
// ErrLabel and ErrAddress.
func ParseDomain(domain string) (string, error) {
	name := strings.TrimSuffix(domain, ".")
	if name == "" || len(name) > MaxDomain {
		return "", fmt.Errorf("domain %q: %w", clip(domain), ErrDomainLength)
	}
	name = strings.ToLower(name)
	var last string
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > MaxLabel {
			return "", fmt.Errorf("domain %q: label %q: %w", clip(domain), clip(label), ErrLabelLength)
		}
		for i := range len(label) {
			inner := i > 0 && i < len(label)-1
			if c := label[i]; !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' && inner) {
				return "", fmt.Errorf("domain %q: label %q: %w", clip(domain), label, ErrLabel)
			}
		}
		last = label
	}
	if strings.Trim(last, "0123456789") == "" {
		return "", fmt.Errorf("domain %q: %w", clip(domain), ErrAddress)
	}
	return name, nil
}

// clip keeps error texts short.
func clip(s string) string {
	if len(s) > MaxLabel {
		return s[:MaxLabel] + "…"
	}
	return s
}
