package job

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/internal/suggest"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
	"github.com/nusa-scheduler/nusa/topology/origin"
)

// maxAddress bounds the address of an origin, in bytes.
const maxAddress = 253

// ValidateOrigins validates an origin record, but not whether its regions exist. The error
// is of type Errors.
func ValidateOrigins(r *nusav1.OriginRecord) error { return validateOrigins(r).err() }

// unknownOrigins returns a problem for each origin whose region does not exist.
func unknownOrigins(r *nusav1.OriginRecord, regions []string) Errors {
	c := &checker{}
	for i, o := range r.GetOrigins() {
		if regions != nil && o.GetRegion() != "" && !slices.Contains(regions, o.GetRegion()) {
			hint := cmp.Or(didYouMean(o.GetRegion(), regions), "; there are "+cmp.Or(suggest.List(regions, 10), "none yet"))
			c.fail(fmt.Sprintf("origins[%d].region", i), "there is no region %q%s", clip(o.GetRegion()), hint)
		}
	}
	return c.errs
}

func validateOrigins(r *nusav1.OriginRecord) Errors {
	c := &checker{}
	if r.GetDomain() == "" {
		c.fail("domain", "is missing")
	} else if _, err := origin.ParsePattern(r.GetDomain()); err != nil {
		c.fail("domain", "%v", err)
	}
	if n := len(r.GetOrigins()); n == 0 {
		c.fail("origins", "is missing: name at least one region")
	} else {
		c.count("origins", n, origin.MaxOrigins, "origins")
	}
	seen := map[string]bool{}
	for i, o := range r.GetOrigins() {
		at := fmt.Sprintf("origins[%d]", i)
		c.name(at+".region", o.GetRegion())
		if seen[o.GetRegion()] {
			c.fail(at+".region", "%s is given twice", clip(o.GetRegion()))
		}
		seen[o.GetRegion()] = true
		if w := o.GetWeight(); w != 0 && !(w >= origin.MinWeight && w <= origin.MaxWeight) {
			c.fail(at+".weight", "%g is not within %g..%g", w, origin.MinWeight, origin.MaxWeight)
		}
		c.address(at+".address", o.GetAddress())
	}
	p := r.GetPolicy()
	if !slices.Contains([]int32{0, 50, 90, 99}, p.GetPercentile()) {
		c.fail("policy.percentile", "%d is not one of 50, 90, 99", p.GetPercentile())
	}
	c.duration("policy.max_rtt", p.GetMaxRtt(), 0, time.Minute)
	c.number("policy.max_relays", p.GetMaxRelays(), -1, topology.MaxRelays)
	if g := p.GetMinRelayGain(); !(g >= 0 && g <= 1) {
		c.fail("policy.min_relay_gain", "%g is not within 0..1", g)
	}
	return c.errs
}

// address validates a host name or an IP address, with or without a port. An empty text is
// valid.
func (c *checker) address(path, s string) {
	if c.text(path, s, maxAddress); s == "" || len(s) > maxAddress {
		return
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return // an IPv6 address without brackets has colons, but no port
	}
	host := s
	if strings.Contains(s, ":") {
		var port string
		var err error
		if host, port, err = net.SplitHostPort(s); err != nil || strings.Contains(s, "/") {
			c.fail(path, "%q is not HOST or HOST:PORT, such as 203.0.113.7:443", clip(s))
			return
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			c.fail(path, "%q: the port %q is not within 1..65535", clip(s), clip(port))
		}
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return
	}
	if _, err := origin.ParseDomain(host); err != nil {
		c.fail(path, "%q: %q is neither a host name nor an IP address", clip(s), clip(host))
	}
}
