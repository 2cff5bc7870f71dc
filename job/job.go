// Package job is the job specification: it reads job files (YAML or JSON) into
// the canonical nusa.v1.JobSpec and writes them back, fills in defaults,
// checks every limit, and says what differs between two specs.
//
// A client calls Parse; a server calls Default, Validate and Unsupported on
// each submit, whatever wrote the message.
package job

import nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"

// MaxSize is the largest job, in bytes: of the file and of the encoded
// message.
const MaxSize = 1 << 20

// DefaultNamespace is the namespace of a job that names none.
const DefaultNamespace = "default"

// DefaultPool is the node pool of a group that names none.
const DefaultPool = "default"

// Limits of a job; see job.proto.
const (
	MaxGroups      = 64
	MaxTasks       = 16
	MaxCount       = 100_000
	MaxConstraints = 32
	MaxAffinities  = 32
	MaxApart       = 8
	MaxLabels      = 64
	MaxPorts       = 64
	MaxVolumes     = 32
	MaxEnv         = 256
	MaxTemplates   = 32
	MaxArtifacts   = 32
	MaxSecrets     = 32
	MaxSelectors   = 64 // of regions.allow, prefer and near, each
	MaxColocations = 32
)

// RegionsOf is where a group would like to be: its own regions, or else the
// job's; never nil.
func RegionsOf(spec *nusav1.JobSpec, group string) *nusav1.RegionsSpec {
	if own := spec.GetGroups()[group].GetRegions(); own != nil {
		return own
	}
	if of := spec.GetRegions(); of != nil {
		return of
	}
	return &nusav1.RegionsSpec{}
}
