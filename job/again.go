package job

import nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"

// EndedAlready warns who submits a batch job, unchanged, that has ended: none
// for other states.
func EndedAlready(state nusav1.JobState) []string {
	const how = " already; run it again with nusa job run --again FILE"
	switch state {
	case nusav1.JobState_JOB_STATE_COMPLETE:
		return []string{"it has completed" + how}
	case nusav1.JobState_JOB_STATE_FAILED:
		return []string{"it has failed" + how}
	}
	return nil
}
