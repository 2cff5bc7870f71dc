package job

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
	"github.com/nusa-scheduler/nusa/topology/origin"
)

// maxAddress bounds Origin.address, in bytes.
const maxAddress = 253

// ValidateOrigins checks an origin record, all but whether there are such
// regions. The error is of type Errors.
func ValidateOrigins(r *nusav1.OriginRecord) error { return validateOrigins(r).err() }

// strangers are the origins in regions that there are not.
func strangers(r *nusav1.OriginRecord, regions []string) Errors {
	c := &checker{}
	for i, o := range r.GetOrigins() {
		if regions != nil && o.GetRegion() != "" && !slices.Contains(regions, o.GetRegion()) {
			hint := cmp.Or(didYouMean(o.GetRegion(), regions), ": `nusa region list` shows them")
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
		c.fail("origins", "is missing: name a region at least")
	} else {
		c.count("origins", n, origin.MaxOrigins, "origins")
	}
	seen := map[string]bool{}
	for i, o := range r.GetOrigins() {
		at := fmt.Sprintf("origins[%d]", i)
		c.name(at+".region", o.GetRegion())
		if seen[o.GetRegion()] {
			c.fail(at+".region", "%s stands twice", clip(o.GetRegion()))
		}
		seen[o.GetRegion()] = true
		if w := o.GetWeight(); w != 0 && !(w >= origin.MinWeight && w <= origin.MaxWeight) {
			c.fail(at+".weight", "%g is not within %g..%g", w, origin.MinWeight, origin.MaxWeight)
		}
		c.text(at+".address", o.GetAddress(), maxAddress)
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
