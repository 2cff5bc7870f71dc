package engine

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/agent/setup"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Node holds the properties of the node and the agent that tasks need.
type Node struct {
	ID, Region string
	AllocsDir  string // absolute path; it has one folder for each allocation
	Path       string // PATH of the tasks
	Reach      Reach  // how the agent reaches the ports of the tasks
	// ProcessUser runs a process whose task names no user. "" means the agent's own user.
	ProcessUser string
	// DNS is the address at which tasks ask for services. "" means that there is none.
	DNS   string
	Setup *setup.Setup
	// GPUMemory returns the memory of an accelerator in bytes; 0: unknown. nil: always unknown.
	GPUMemory func(id string) int64
}

// shareVariables returns the variables of a task that has a part of an accelerator. memory is the
// memory of the whole accelerator. NVIDIA's multi-process service, if it runs on the host, enforces
// the part by the variables CUDA_MPS_…. Without that service the device switches between the programs.
func shareVariables(milli int32, memory int64) map[string]string {
	out := map[string]string{
		"NUSA_GPU_SHARE":                    strconv.FormatFloat(float64(milli)/reconcile.WholeGPU, 'f', -1, 64),
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": strconv.FormatFloat(float64(milli)/10, 'f', -1, 64),
	}
	if part := memory / reconcile.WholeGPU * int64(milli); part > 0 {
		out["NUSA_GPU_MEMORY_BYTES"] = strconv.FormatInt(part, 10)
		out["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = fmt.Sprintf("0=%dM", part>>20)
	}
	return out
}

// variables returns the NUSA_ variables of a task's environment.
func variables(a *nusav1.Allocation, ports []driver.Port, task, allocDir string, n Node) map[string]string {
	vars := map[string]string{
		"NUSA_NAMESPACE": a.GetNamespace(),
		"NUSA_JOB":       a.GetJob(),
		"NUSA_GROUP":     a.GetGroup(),
		"NUSA_INDEX":     strconv.Itoa(int(a.GetIndex())),
		"NUSA_ALLOC_ID":  a.GetId(),
		"NUSA_REGION":    n.Region,
		"NUSA_NODE":      n.ID,
		"NUSA_ATTEMPT":   strconv.Itoa(int(a.GetAttempt())),
		"NUSA_EPOCH":     fmt.Sprintf("%d.%d", a.GetGeneration(), a.GetEpoch()),
		"NUSA_TASK":      task,
		"NUSA_ALLOC_DIR": filepath.Join(allocDir, "shared"),
		"NUSA_TASK_DIR":  filepath.Join(allocDir, "tasks", task),
	}
	if n.DNS != "" {
		vars["NUSA_DNS"] = n.DNS
	}
	if job.OfStep(a.GetJob()) {
		vars["NUSA_OUTPUT"] = filepath.Join(allocDir, "tasks", task, setup.OutputFile)
	}
	for _, p := range ports {
		vars["NUSA_PORT_"+p.Label] = strconv.Itoa(p.Host)
	}
	return vars
}

// expand replaces each ${NUSA_…} by the value of the variable. Other texts ${…} belong to
// the program and stay. An unknown NUSA_ variable is an error of the job file.
func expand(s string, vars map[string]string) (string, error) {
	var b strings.Builder
	for {
		i := strings.Index(s, "${NUSA_")
		if i < 0 {
			b.WriteString(s)
			return b.String(), nil
		}
		end := strings.IndexByte(s[i:], '}')
		if end < 0 {
			return "", fmt.Errorf("%q has no closing brace", s[i:min(len(s), i+32)])
		}
		name := s[i+2 : i+end]
		value, ok := vars[name]
		if !ok {
			return "", fmt.Errorf("unknown variable ${%s}; known are %s", name, strings.Join(slices.Sorted(maps.Keys(vars)), ", "))
		}
		b.WriteString(s[:i])
		b.WriteString(value)
		s = s[i+end+1:]
	}
}

// expandAny expands every string in a driver's configuration.
func expandAny(v any, vars map[string]string) (any, error) {
	switch v := v.(type) {
	case string:
		return expand(v, vars)
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			var err error
			if out[i], err = expandAny(item, vars); err != nil {
				return nil, fmt.Errorf("[%d]: %w", i, err)
			}
		}
		return out, nil
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			var err error
			if out[k], err = expandAny(v[k], vars); err != nil {
				return nil, fmt.Errorf("%s: %w", k, err)
			}
		}
		return out, nil
	}
	return v, nil
}
