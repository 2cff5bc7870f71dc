package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/agent/gpu"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// scripts makes a group of shell tasks.
func scripts(t *testing.T, tasks map[string]*nusav1.Task, text map[string]string) func(*nusav1.AllocOrder, *nusav1.Group) {
	return func(_ *nusav1.AllocOrder, g *nusav1.Group) {
		none := int32(0)
		g.Tasks = map[string]*nusav1.Task{}
		for name, task := range tasks {
			c, err := structpb.NewStruct(sh(text[name]))
			if err != nil {
				t.Fatal(err)
			}
			task.Driver, task.Config, task.Restart, task.KillTimeout = "process", c, &nusav1.Restart{Attempts: &none}, durationpb.New(5*time.Second)
			g.Tasks[name] = task
		}
	}
}

// TestTasksInOrder: the tasks of an instance start and stop in their order. A task gets its own
// kill_signal. The poststop task runs last.
func TestTasksInOrder(t *testing.T) {
	m, dir := newMaster(t), t.TempDir()
	file, trapped := filepath.Join(dir, "order"), filepath.Join(dir, "trapped")
	say := func(what string) string { return "echo " + what + " >>" + file + "; " }
	hook := func(h nusav1.LifecycleHook, sidecar bool) *nusav1.Lifecycle {
		return &nusav1.Lifecycle{Hook: h, Sidecar: sidecar}
	}
	m.order(testOrder("aaaa", 1, "process", sh(""), scripts(t, map[string]*nusav1.Task{
		"init":  {Lifecycle: hook(nusav1.LifecycleHook_LIFECYCLE_HOOK_PRESTART, false)},
		"side":  {Lifecycle: hook(nusav1.LifecycleHook_LIFECYCLE_HOOK_PRESTART, true)},
		"web":   {KillSignal: "SIGUSR1", Leader: true},
		"after": {Lifecycle: hook(nusav1.LifecycleHook_LIFECYCLE_HOOK_POSTSTART, false)},
		"clean": {Lifecycle: hook(nusav1.LifecycleHook_LIFECYCLE_HOOK_POSTSTOP, false)},
	}, map[string]string{
		"init":  say("init") + "echo ready >$NUSA_ALLOC_DIR/page",
		"side":  "trap '" + say("side ends") + "exit 0' TERM; echo >" + trapped + "; while :; do sleep 0.05; done",
		"web":   "trap '" + say("web got USR1") + "exit 0' USR1; " + say("web $(cat $NUSA_ALLOC_DIR/page)") + "while :; do sleep 0.05; done",
		"after": say("after"),
		"clean": say("clean") + "exit 3",
	})))
	startProcess(t, filepath.Join(dir, "data"), m.addr)
	m.untilState("aaaa", running)
	m.until("the task after the start", func() bool {
		return m.reports["aaaa"].GetTasks()["after"].GetState() == complete
	})
	// A task runs before its shell has set its trap.
	polled(t, "the traps of both services", func() bool { return lines(file) == 3 && lines(trapped) == 1 })
	o := testOrder("aaaa", 2, "process", sh(""))
	o.Allocation.Desired = nusav1.AllocDesired_ALLOC_DESIRED_STOP
	o.Group = nil
	m.order(o)
	r := m.untilState("aaaa", stopped)
	if code := r.GetTasks()["clean"].GetExitCode(); code != 3 {
		t.Errorf("the poststop task ended with %d: %v", code, r)
	}
	text, err := os.ReadFile(file)
	// The poststart task begins when the others have started. So its first line may come before theirs.
	got := strings.Replace(string(text), "after\nweb ready\n", "web ready\nafter\n", 1)
	if want := "init\nweb ready\nafter\nweb got USR1\nside ends\nclean\n"; err != nil || got != want {
		t.Errorf("the order was\n%swant\n%s%v", text, want, err)
	}
}

// TestAcceleratorsOfATask: a task sees the devices that its order names. The agent refuses an order
// for a device that is in use, and an order that names too few devices.
func TestAcceleratorsOfATask(t *testing.T) {
	m, dir := newMaster(t), t.TempDir()
	c := testConfig(t, filepath.Join(dir, "data"), nil, m.addr)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c.SupervisorArgv, c.DockerHost, c.Incus = []string{self, "supervise"}, "off", "off"
	c.GPUs = func(context.Context) ([]gpu.Device, error) {
		return []gpu.Device{{UUID: "GPU-1", Model: "h100", MemoryBytes: 80 << 30}, {UUID: "GPU-2", Model: "h100"}, {UUID: "GPU-3", Problem: "is broken"}, {UUID: "GPU-4", MemoryBytes: 10 << 30}}, nil
	}
	device := func(count int32, ids ...string) func(*nusav1.AllocOrder, *nusav1.Group) {
		return func(o *nusav1.AllocOrder, g *nusav1.Group) {
			o.Allocation.Resources.Gpu = &nusav1.GPU{Count: count}
			g.Tasks["main"].Resources = &nusav1.Resources{Gpu: &nusav1.GPU{Count: count}}
			for _, id := range ids {
				o.Gpus = append(o.Gpus, &nusav1.GPUGrant{Device: id, ShareMilli: 1000})
			}
		}
	}
	part := func(milli, given int32) func(*nusav1.AllocOrder, *nusav1.Group) {
		return func(o *nusav1.AllocOrder, g *nusav1.Group) {
			g.Tasks["main"].Resources = &nusav1.Resources{Gpu: &nusav1.GPU{ShareMilli: milli}}
			o.Gpus = []*nusav1.GPUGrant{{Device: "GPU-4", ShareMilli: given}}
		}
	}
	show := sh(`echo "$CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES"; exec sleep 3600`)
	m.order(testOrder("aaaa", 1, "process", show, device(2, "GPU-2", "GPU-1")))
	runAgent(t, c)
	m.untilState("aaaa", running)
	untilOutput(t, nusav1.NewAllocationsClient(m.conn()), "GPU-2,GPU-1 GPU-2,GPU-1\n")
	m.order(testOrder("bbbb", 2, "process", show, device(1, "GPU-1")))
	if r := m.untilState("bbbb", failed); r.GetReason() != nusav1.Reason_REASON_INSUFFICIENT_GPU || !strings.Contains(r.GetMessage(), "GPU-1") {
		t.Errorf("a device that another allocation has: %v", r)
	}
	m.order(testOrder("dddd", 4, "process", show, device(1, "GPU-3")))
	if r := m.untilState("dddd", failed); r.GetReason() != nusav1.Reason_REASON_INSUFFICIENT_GPU || !strings.Contains(r.GetMessage(), "does not offer") {
		t.Errorf("a device with a problem: %v", r)
	}
	// Two allocations have parts of one device. A third part does not fit.
	sharing := sh(`echo "$CUDA_VISIBLE_DEVICES $NUSA_GPU_SHARE $NUSA_GPU_MEMORY_BYTES $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"; exec sleep 3600`)
	for i, id := range []string{"eeee", "ffff"} {
		m.order(testOrder(id, uint64(5+i), "process", sharing, part(400, 400)))
		m.untilState(id, running)
	}
	untilOutputOf(t, nusav1.NewAllocationsClient(m.conn()), "eeee", "GPU-4 0.4 4294967200 0=4095M\n")
	m.order(testOrder("gggg", 7, "process", sharing, part(400, 400)))
	if r := m.untilState("gggg", failed); r.GetReason() != nusav1.Reason_REASON_INSUFFICIENT_GPU || !strings.Contains(r.GetMessage(), "200 of 1000 free") {
		t.Errorf("a part too many: %v", r)
	}
	m.order(testOrder("hhhh", 8, "process", sharing, part(200, 1000)))
	if r := m.untilState("hhhh", failed); r.GetReason() != nusav1.Reason_REASON_UNSUPPORTED || !strings.Contains(r.GetMessage(), "not what the task asks for") {
		t.Errorf("an order of another part: %v", r)
	}
	m.order(testOrder("cccc", 3, "process", show, device(1)))
	if r := m.untilState("cccc", failed); r.GetReason() != nusav1.Reason_REASON_UNSUPPORTED || !strings.Contains(r.GetMessage(), "names 0") {
		t.Errorf("an order without devices: %v", r)
	}
}
