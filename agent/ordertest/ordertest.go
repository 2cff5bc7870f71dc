package ordertest

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Change changes an order and its group.
type Change func(*nusav1.AllocOrder, *nusav1.Group)

// New returns an order of one task "main". index is the order's number.
func New(id string, index uint64, driver string, config map[string]any, changes ...Change) *nusav1.AllocOrder {
	c, err := structpb.NewStruct(config)
	if err != nil {
		panic(err)
	}
	g := &nusav1.Group{Tasks: map[string]*nusav1.Task{"main": {
		Driver: driver, Config: c, KillTimeout: durationpb.New(time.Second),
		Restart: &nusav1.Restart{Attempts: proto.Int32(0)},
	}}}
	o := &nusav1.AllocOrder{
		Allocation: &nusav1.Allocation{Id: id, Namespace: "default", Job: "job", Group: "web", Desired: nusav1.AllocDesired_ALLOC_DESIRED_RUN,
			Generation: 42, Epoch: 3, Resources: &nusav1.Resources{CpuMilli: 100, MemoryBytes: 64 << 20}},
		Incarnation: 1, Index: index, JobType: "service",
	}
	for _, f := range changes {
		f(o, g)
	}
	o.Group, err = proto.Marshal(g)
	if err != nil {
		panic(err)
	}
	return o
}

// Batch makes the order's job a batch job.
func Batch(o *nusav1.AllocOrder, _ *nusav1.Group) { o.JobType = "batch" }

// Stop turns the order into an order to stop the allocation.
func Stop(o *nusav1.AllocOrder, _ *nusav1.Group) {
	o.Allocation.Desired = nusav1.AllocDesired_ALLOC_DESIRED_STOP
}
