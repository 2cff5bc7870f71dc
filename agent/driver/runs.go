package driver

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// RunsIn returns the runs of a driver that has an entry DIR/ALLOC/TASK.RUN for each run. The names
// of the entries end with suffix. Other entries are ignored.
func RunsIn(dir, suffix string) ([]ID, error) {
	allocs, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []ID
	for _, a := range allocs {
		if !a.IsDir() {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(dir, a.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // its last run was removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			name, found := strings.CutSuffix(e.Name(), suffix)
			dot := strings.LastIndexByte(name, '.')
			if !found || dot <= 0 {
				continue
			}
			run, err := strconv.Atoi(name[dot+1:])
			if err == nil && run > 0 && strconv.Itoa(run) == name[dot+1:] {
				out = append(out, ID{Alloc: a.Name(), Task: name[:dot], Run: run})
			}
		}
	}
	return out, nil
}
