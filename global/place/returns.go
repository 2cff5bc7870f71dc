package place

import (
	"cmp"
	"strings"
)

// returnIndex indexes rejected and returned work by key.
type returnIndex struct {
	byAsk    map[askIn]*Returned
	backoffs map[groupIn]*Returned
	last     map[groupIn]*Returned
}

type askIn struct {
	ask    uint64
	region string
}

type groupIn struct{ namespace, job, group, region string }

func newReturnIndex(all []Returned) returnIndex {
	return returnIndex{byAsk: lastReturnsByAsk(all), backoffs: backoffs(all), last: lastReturns(all)}
}

// lastReturnsByAsk indexes the latest return of each ask by each region.
func lastReturnsByAsk(all []Returned) map[askIn]*Returned {
	out := make(map[askIn]*Returned, len(all))
	for i := range all {
		r := &all[i]
		k := askIn{r.Ask, r.Region}
		if old := out[k]; old == nil || r.ReportSequence > old.ReportSequence {
			out[k] = r
		}
	}
	return out
}

// backoffs indexes the longest backoff of each group in each region.
func backoffs(all []Returned) map[groupIn]*Returned {
	out := map[groupIn]*Returned{}
	for i := range all {
		r := &all[i]
		k := groupIn{r.Namespace, r.Job, r.Group, r.Region}
		if old := out[k]; r.Backoff > 0 && (old == nil || r.Backoff > old.Backoff) {
			out[k] = r
		}
	}
	return out
}

// lastReturns indexes the latest return of each group by each region.
func lastReturns(all []Returned) map[groupIn]*Returned {
	out := make(map[groupIn]*Returned, len(all))
	for i := range all {
		r := &all[i]
		k := groupIn{r.Namespace, r.Job, r.Group, r.Region}
		if old := out[k]; old == nil || r.ReportSequence >= old.ReportSequence {
			out[k] = r
		}
	}
	return out
}

// reasonText returns the region's own text, or the reason in words.
func (r *Returned) reasonText() string {
	return cmp.Or(r.ReasonText, r.Message, strings.ReplaceAll(r.Reason, "_", " "), "no reason given")
}
