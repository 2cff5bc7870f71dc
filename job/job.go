package job

import nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"

// MaxSize bounds a job in bytes: its file and its encoded message.
const MaxSize = 1 << 20

// DefaultNamespace is the namespace of a job without one.
const DefaultNamespace = "default"

// DefaultPool is the node pool of a group without one.
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
	MaxSelectors   = 64 // bounds each of regions.allow, prefer and near
	MaxColocations = 32
)

// RegionsOf returns the regions of a group, or else those of the job; never nil.
func RegionsOf(spec *nusav1.JobSpec, group string) *nusav1.RegionsSpec {
	if own := spec.GetGroups()[group].GetRegions(); own != nil {
		return own
	}
	if of := spec.GetRegions(); of != nil {
		return of
	}
	return &nusav1.RegionsSpec{}
}
