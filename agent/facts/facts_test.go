package facts

import (
	"sync"
	"testing"

	"github.com/shirou/gopsutil/v4/cpu"
)

// TestHostReportsEveryFact: a real host reports all facts of its hardware and load.
func TestHostReportsEveryFact(t *testing.T) {
	src := Host()
	f, err := src.Static(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if f.GetHostname() == "" || f.GetOs() != "linux" || f.GetKernel() == "" || f.GetArch() == "" ||
		f.GetCpuCores() < 1 || f.GetCpuModel() == "" || f.GetMemoryBytes() < 1<<20 || f.GetBootTime() == nil {
		t.Errorf("facts %v", f)
	}
	if len(f.GetDisks()) == 0 || f.GetDisks()[0].GetTotalBytes() <= 0 || len(f.GetNetworks()) == 0 {
		t.Errorf("disks %v, networks %v", f.GetDisks(), f.GetNetworks())
	}
	st, err := src.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.GetCpu() < 0 || st.GetCpu() > 1 || len(st.GetCpuPerCore()) != int(f.GetCpuCores()) ||
		st.GetMemoryUsedBytes() <= 0 || st.GetMemoryAvailableBytes() > f.GetMemoryBytes() || st.GetUptime().AsDuration() <= 0 {
		t.Errorf("stats %v", st)
	}
	if len(st.GetDisks()) != len(f.GetDisks()) || len(st.GetNetworks()) == 0 {
		t.Errorf("disks %v, networks %v", st.GetDisks(), st.GetNetworks())
	}
}

// TestAgentsShareOneSample: many agents of one process take one sample together.
func TestAgentsShareOneSample(t *testing.T) {
	src := Host()
	first, err := src.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	facts, err := src.Static(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 15 {
		wg.Go(func() {
			if again, err := src.Stats(t.Context()); err != nil || again != first {
				t.Errorf("another sample: %v", err)
			}
			if again, err := src.Static(t.Context()); err != nil || again != facts {
				t.Errorf("other facts: %v", err)
			}
		})
	}
	wg.Wait()
}

func TestBusy(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to cpu.TimesStat
		want     float64
	}{
		{"half", cpu.TimesStat{User: 10, Idle: 10}, cpu.TimesStat{User: 11, Idle: 11}, 0.5},
		{"waiting for a disk is idle", cpu.TimesStat{}, cpu.TimesStat{System: 1, Iowait: 3}, 0.25},
		{"nothing passed", cpu.TimesStat{User: 5}, cpu.TimesStat{User: 5}, 0},
		{"guest is in user", cpu.TimesStat{}, cpu.TimesStat{User: 1, Guest: 1, Idle: 1}, 0.5},
		{"counter went back", cpu.TimesStat{Idle: 10}, cpu.TimesStat{User: 20, Idle: 9}, 1},
	} {
		if got := busy(c.from, c.to); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestRate(t *testing.T) {
	if got := rate(1000, 6000, 5e9); got != 1000 {
		t.Errorf("5000 bytes in 5 s: %v", got)
	}
	if rate(10, 5, 1e9) != 0 || rate(1, 2, 0) != 0 {
		t.Error("a counter that was reset, or no time, has a rate")
	}
}
