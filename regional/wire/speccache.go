package wire

import (
	"github.com/nusa-scheduler/nusa/internal/submits"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// CachedSpec is the result of parsing a spec, without the name of the job. Several jobs
// share it, so it must not be changed.
type CachedSpec struct {
	Job      state.Job // Job.Spec is the encoding without the name
	Warnings []string
	// Asked remembers what policies ask about the spec.
	Asked *rights.Asked
}

// Named returns the job with the given name.
func (c *CachedSpec) Named(name string) state.Job {
	j := c.Job
	j.Key.Job, j.Spec = name, submits.WithName(name, c.Job.Spec)
	return j
}

// SpecCache stores the results of parsing specs.
type SpecCache struct{ cache submits.Cache[CachedSpec] }

// Get returns the name in an encoded spec and the result of parsing the spec. It calls
// parse for a spec that is not cached. The error is a gRPC status.
func (c *SpecCache) Get(raw []byte, parse func(*nusav1.JobSpec) (CachedSpec, error)) (string, *CachedSpec, error) {
	return c.cache.Get(raw, func(spec *nusav1.JobSpec) (CachedSpec, int, error) {
		parsed, err := parse(spec)
		return parsed, len(parsed.Job.Spec), err
	})
}
