package job

import nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"

// MaxSize bounds the file and the encoded message of a job, in bytes.
const MaxSize = 1 << 20

// DefaultNamespace is the namespace of a job that states none.
const DefaultNamespace = "default"

// DefaultPool is the node pool of a group that states none.
const DefaultPool = "default"

// Limits of a job. job.proto documents them.
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

// RegionsOf returns `regions` of a group, or else `regions` of the job. It never returns
// nil.
func RegionsOf(spec *nusav1.JobSpec, group string) *nusav1.RegionsSpec {
	if own := spec.GetGroups()[group].GetRegions(); own != nil {
		return own
	}
	if of := spec.GetRegions(); of != nil {
		return of
	}
	return &nusav1.RegionsSpec{}
}
