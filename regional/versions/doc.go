// Package versions serves the versions of the region's own jobs. The state keeps them: see
// state.StoredVersion.
//
//	service.go  the Rollouts service of a region: history, diff, revert, tag
package versions
