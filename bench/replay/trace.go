package replay

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Request is one recorded instance. Requests with equal arrivals, batches and resources
// are the instances of one job.
type Request struct {
	Arrival time.Duration // since the begin of the trace
	// Batch is the name that the requests of one job share; empty = the request is a job.
	Batch string
	// CPUMilli and MemoryBytes are what the instance reserves.
	CPUMilli, MemoryBytes int64
	// Lasts is how long the instance runs; 0 = until after the end of the trace.
	Lasts time.Duration
}

// format is one kind of trace: a table whose first line names at least these columns.
type format struct {
	columns []string
	read    func(fields []string) (Request, bool, error)
}

var formats = []format{
	{[]string{"arrival_s", "batch_id", "cpu_cores", "memory_gb", "duration_max_s", "censored"}, readVM},
	{[]string{"cpu_milli", "memory_mib", "creation_time", "deletion_time"}, readPod},
}

// ReadFile reads a trace from a file, which may be compressed by gzip.
func ReadFile(path string) ([]Request, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}

// Read reads a trace of one of three kinds: a CSV file of requests for virtual machines
// (arrival_s, batch_id, cpu_cores, memory_gb, duration_max_s, censored), a CSV file of
// pods (cpu_milli, memory_mib, creation_time, deletion_time), or a log in the Standard
// Workload Format. The result is sorted by arrival, and the first request arrives at 0.
func Read(in io.Reader) ([]Request, error) {
	b := bufio.NewReader(in)
	if head, _ := b.Peek(2); bytes.Equal(head, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, err
		}
		b = bufio.NewReader(z)
	}
	head, err := b.Peek(1)
	if err != nil {
		return nil, errors.New("the trace is empty")
	}
	var out []Request
	if head[0] == ';' {
		out, err = readSWF(b)
	} else {
		out, err = readTable(b)
	}
	if err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, errors.New("the trace has no requests")
	}
	slices.SortStableFunc(out, func(a, b Request) int { return cmp.Compare(a.Arrival, b.Arrival) })
	first := out[0].Arrival
	for i := range out {
		out[i].Arrival -= first
	}
	return out, nil
}

func readTable(in io.Reader) ([]Request, error) {
	r := csv.NewReader(in)
	r.ReuseRecord = true
	head, err := r.Read()
	if err != nil {
		return nil, err
	}
	head = slices.Clone(head)
	for _, f := range formats {
		at := make([]int, len(f.columns))
		for i, c := range f.columns {
			at[i] = slices.Index(head, c)
		}
		if !slices.Contains(at, -1) {
			return readRows(r, at, f)
		}
	}
	var known []string
	for _, f := range formats {
		known = append(known, strings.Join(f.columns, ","))
	}
	return nil, fmt.Errorf("no known trace has the columns %s: known are %s", strings.Join(head, ","), strings.Join(known, " and "))
}

func readRows(r *csv.Reader, at []int, f format) (out []Request, err error) {
	fields := make([]string, len(at))
	for line := 2; ; line++ {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		for i, c := range at {
			fields[i] = row[c]
		}
		q, use, err := f.read(fields)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if use {
			out = append(out, q)
		}
	}
}

// readVM reads a row of arrival_s, batch_id, cpu_cores, memory_gb, duration_max_s and
// censored. A censored instance runs until after the end of the trace.
func readVM(f []string) (Request, bool, error) {
	n, err := numbers(f[0], f[2], f[3], f[4], f[5])
	if err != nil {
		return Request{}, false, err
	}
	q := Request{Arrival: seconds(n[0]), Batch: f[1], CPUMilli: int64(n[1] * 1000), MemoryBytes: int64(n[2] * (1 << 30)), Lasts: seconds(n[3])}
	if n[4] != 0 {
		q.Lasts = 0
	}
	return q, true, nil
}

// readPod reads a row of cpu_milli, memory_mib, creation_time and deletion_time. It skips
// a pod that reserves no CPU.
func readPod(f []string) (Request, bool, error) {
	if f[3] == "" {
		f[3] = "0"
	}
	n, err := numbers(f...)
	if err != nil {
		return Request{}, false, err
	}
	return Request{Arrival: seconds(n[2]), CPUMilli: int64(n[0]), MemoryBytes: int64(n[1] * (1 << 20)), Lasts: max(0, seconds(n[3]-n[2]))}, n[0] > 0, nil
}

// swfMemory is the memory of an instance from a log in the Standard Workload Format,
// because such logs often have none.
const swfMemory = 1 << 30

// readSWF reads a log in the Standard Workload Format. Each processor of a job becomes an
// instance with one core.
func readSWF(in io.Reader) (out []Request, err error) {
	const submit, run, processors = 1, 3, 4
	lines := bufio.NewScanner(in)
	for line := 1; lines.Scan(); line++ {
		f := strings.Fields(lines.Text())
		if len(f) == 0 || strings.HasPrefix(f[0], ";") {
			continue
		}
		if len(f) <= processors {
			return nil, fmt.Errorf("line %d: %d fields", line, len(f))
		}
		n, err := numbers(f[submit], f[run], f[processors])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		for range int(n[2]) {
			out = append(out, Request{Arrival: seconds(n[0]), Batch: f[0], CPUMilli: 1000, MemoryBytes: swfMemory, Lasts: max(time.Second, seconds(n[1]))})
		}
	}
	return out, lines.Err()
}

func numbers(texts ...string) ([]float64, error) {
	out := make([]float64, len(texts))
	for i, t := range texts {
		n, err := strconv.ParseFloat(t, 64)
		if err != nil || n < -1 || n > 1e12 {
			return nil, fmt.Errorf("%q is no number", t)
		}
		out[i] = n
	}
	return out, nil
}

func seconds(n float64) time.Duration { return time.Duration(n) * time.Second }
