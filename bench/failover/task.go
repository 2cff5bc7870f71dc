package failover

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nusa-scheduler/nusa/internal/boottime"
)

// writeEvery is how often a task writes the time.
const writeEvery = 10 * time.Millisecond

// recordBytes is the size of a task's file. The file holds the first and the latest time
// at which the task ran, in nanoseconds of CLOCK_BOOTTIME.
const recordBytes = 16

// Task writes the time into a file of dir until the process is killed. It ignores the stop
// signal, so that it runs for as long as its supervisor lets it. The name of the file
// holds the region, the index and the epoch of the instance, and the process id.
func Task(ctx context.Context, dir string) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	name := strings.Join([]string{os.Getenv("NUSA_REGION"), os.Getenv("NUSA_INDEX"), os.Getenv("NUSA_EPOCH"), strconv.Itoa(os.Getpid())}, "_")
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	record := make([]byte, recordBytes)
	binary.LittleEndian.PutUint64(record, uint64(boottime.Now()))
	tick := time.NewTicker(writeEvery)
	defer tick.Stop()
	for {
		binary.LittleEndian.PutUint64(record[8:], uint64(boottime.Now()))
		if _, err := f.WriteAt(record, 0); err != nil {
			return errors.Join(err, f.Close())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return f.Close()
		}
	}
}

// readRuns reads the files of all tasks.
func readRuns(dir string) ([]run, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []run
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		if len(data) < recordBytes {
			continue // the task has just begun
		}
		parts := strings.Split(e.Name(), "_")
		if len(parts) != 4 {
			return nil, fmt.Errorf("%s: not a file of a task", e.Name())
		}
		index, err := strconv.Atoi(parts[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		out = append(out, run{
			region: parts[0], index: index, epoch: parts[2],
			first: time.Duration(binary.LittleEndian.Uint64(data)), last: time.Duration(binary.LittleEndian.Uint64(data[8:])),
		})
	}
	return out, nil
}
