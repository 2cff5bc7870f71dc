package wire

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

type numbers = map[string]protowire.Number

// handWritten lists the messages that are read or written by hand. For each message it
// lists the fields that are handled and the fields that are left out on purpose.
var handWritten = []struct {
	message proto.Message
	handled numbers
	ignored []string
}{
	{&nusav1.AgentMessage{}, numbers{
		"hello": KindHello, "lease": KindLease, "reports": KindReports, "stats": agentStats, "inventory": KindInventory, "goodbye": KindGoodbye,
		"orders_ack": agentOrdersAck,
	}, nil},
	{&nusav1.LeaseRequest{}, numbers{"id": leaseRequestID, "granted": leaseRequestGot}, []string{"commit_blocked", "confirmed", "unordered"}}, // used only between a region and the global tier
	{&nusav1.Position{}, numbers{"epoch": positionEpoch, "sequence": positionSequence}, nil},
	{&nusav1.AllocReports{}, numbers{
		"full": reportsFull, "last": reportsLast, "reports": reportsReports, "removed": reportsRemoved, "position": reportsPosition,
	}, nil},
	{&nusav1.AllocReport{}, numbers{
		"id": reportID, "state": reportState, "declined": reportDeclined, "reason": reportReason, "message": reportMessage, "tasks": reportTasks,
		"index": reportIndex, "failure": reportFailure, "limits": reportLimits, "output": reportOutput,
	}, []string{"incarnation"}}, // a field of the order: the state has it
	{&nusav1.Failure{}, numbers{
		"category": failureCategory, "task": failureTask, "exit_code": failureExitCode, "signal": failureSignal, "permanent": failurePermanent,
	}, nil},
	{&nusav1.TaskState{}, numbers{"state": taskState, "restarts": taskRestarts}, // the other fields stay encoded, see encodeTasks
		[]string{"exit_code", "signal", "started", "finished", "reason", "message", "events", "run", "check", "events_dropped"}},
	{&nusav1.NodeStats{}, numbers{
		"cpu": statsCPU, "memory_used_bytes": statsMemoryUsed, "memory_available_bytes": statsMemoryAvailable, "disks": statsDisks,
		"networks": statsNetworks, "load1": statsLoad1, "tasks": statsTasks, "age": statsAge,
	}, []string{"cpu_per_core", "swap_used_bytes", "load5", "load15", "uptime"}}, // only in NodeStats.Raw
	{&nusav1.DiskStats{}, numbers{"used_bytes": diskUsed, "total_bytes": diskTotal}, []string{"mount"}},
	{&nusav1.NetworkStats{}, numbers{"in_per_second": networkInPerSecond, "out_per_second": networkOutPerSecond},
		[]string{"name", "bytes_in", "bytes_out", "packets_in", "packets_out", "errors"}},
	{&durationpb.Duration{}, numbers{"seconds": durationSeconds, "nanos": durationNanos}, nil},
	{&nusav1.MasterMessage{}, numbers{"orders": masterOrders}, // the other messages are sent as generated messages
		[]string{"welcome", "standby", "refused", "lease", "reports_ack", "tunnel", "servers"}},
	{&nusav1.AllocOrders{}, numbers{
		"full": ordersFull, "last": ordersLast, "orders": ordersOrders, "removed": ordersRemoved, "position": ordersPosition,
	}, nil},
	{&nusav1.AllocOrder{}, numbers{
		"allocation": orderAllocation, "group": orderGroup, "incarnation": orderIncarnation, "index": orderIndex, "job_type": orderJobType,
		"binding": orderBinding, "gpus": orderGPUs, "resized": orderResized,
	}, nil},
	{&nusav1.GPUGrant{}, numbers{"device": grantDevice, "share_milli": grantShare}, nil},
	{&nusav1.Allocation{}, numbers{
		"id": allocID, "namespace": allocNamespace, "job": allocJob, "group": allocGroup, "index": allocIndex, "job_version": allocJobVersion,
		"region": allocRegion, "node_id": allocNodeID, "node_name": allocNodeName, "desired": allocDesired, "reason": allocReason,
		"message": allocMessage, "generation": allocGeneration, "epoch": allocEpoch, "tasks": allocTasks, "resources": allocResources,
		"ports": allocPorts, "attempt": allocAttempt, "incarnation": allocIncarnation,
		"output": allocOutput,
	}, []string{"state", "created", "modified", "create_index", "modify_index", "placed_because", "node_silent", "retry", "gpus"}}, // agents need none of these
	{&nusav1.Resources{}, numbers{"cpu_milli": resourcesCPUMilli, "memory_bytes": resourcesMemoryBytes, "disk_bytes": resourcesDiskBytes},
		[]string{"gpu"}}, // state.Resources has no GPUs
	{&nusav1.JobSpec{}, numbers{"groups": specGroups, "labels": specLabels}, // the other fields stay encoded
		[]string{"name", "namespace", "type", "priority", "regions", "colocate", "schedule", "parameterized", "workflow"}},
}

// TestFieldsAreThoseOfTheMessages: each field of a message in handWritten is handled under
// its number or left out on purpose.
func TestFieldsAreThoseOfTheMessages(t *testing.T) {
	for _, m := range handWritten {
		d := m.message.ProtoReflect().Descriptor()
		listed := map[string]bool{}
		for name, number := range m.handled {
			listed[name] = true
			if f := d.Fields().ByNumber(number); f == nil || string(f.Name()) != name {
				t.Errorf("%s: field %s has not the number %d", d.Name(), name, number)
			}
		}
		for _, name := range m.ignored {
			if f := d.Fields().ByTextName(name); f == nil || listed[name] {
				t.Errorf("%s: ignored field %s does not exist, or is handled too", d.Name(), name)
			}
			listed[name] = true
		}
		for i := range d.Fields().Len() {
			if f := d.Fields().Get(i); !listed[string(f.Name())] {
				t.Errorf("%s: field %s is neither handled nor ignored", d.Name(), f.Name())
			}
		}
	}
}
