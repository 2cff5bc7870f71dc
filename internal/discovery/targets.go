package discovery

import (
	"net"
	"strconv"
	"strings"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TargetGroup is a group of targets in the form of Prometheus' HTTP service discovery (http_sd).
type TargetGroup struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// targetGroups returns the instances as targets, each in a group of its own, because its labels are its
// own.
func targetGroups(all []*nusav1.ServiceInstance) []TargetGroup {
	out := make([]TargetGroup, 0, len(all))
	for _, i := range all {
		tags := ""
		if len(i.GetTags()) > 0 {
			tags = "," + strings.Join(i.GetTags(), ",") + ","
		}
		out = append(out, TargetGroup{
			Targets: []string{net.JoinHostPort(i.GetAddress(), strconv.Itoa(int(i.GetPort())))},
			Labels: map[string]string{
				"__meta_nusa_namespace": i.GetNamespace(), "__meta_nusa_service": i.GetService(), "__meta_nusa_tags": tags,
				"__meta_nusa_region": i.GetRegion(), "__meta_nusa_node": i.GetNode(), "__meta_nusa_alloc": i.GetAlloc(),
				"__meta_nusa_job": i.GetJob(), "__meta_nusa_group": i.GetGroup(), "__meta_nusa_index": strconv.Itoa(int(i.GetIndex())),
			},
		})
	}
	return out
}
