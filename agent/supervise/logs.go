package supervise

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// Logs emits the retained output of the run in dir (see driver.Driver). It reads the
// supervisor's files. With Follow the supervisor reports when a file has grown.
func Logs(ctx context.Context, dir string, o driver.LogOptions, emit func(driver.LogChunk) error) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	var streams []*tail
	if o.Stdout {
		streams = append(streams, &tail{root: root, name: "stdout"})
	}
	if o.Stderr {
		streams = append(streams, &tail{root: root, name: "stderr", stderr: true})
	}
	for _, t := range streams {
		defer t.close()
		seek := func() error { return t.seek(o.TailBytes) }
		if o.TailLines > 0 {
			seek = func() error { return t.seekLines(o.TailLines) }
		}
		if err := seek(); err != nil {
			return err
		}
	}
	send := func() error {
		for _, t := range streams {
			if err := t.read(ctx, emit); err != nil {
				return err
			}
		}
		return nil
	}
	if !o.Follow {
		return send()
	}
	return Watch(ctx, dir, send)
}

// LogSize returns the size of the retained output of the run in dir, in bytes. If the
// folder does not exist, it returns 0.
func LogSize(dir string) (int64, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, e := range entries {
		// A rotation may have removed the file in the meantime.
		if fi, err := e.Info(); err == nil && fi.Mode().IsRegular() && (strings.HasPrefix(e.Name(), "stdout.") || strings.HasPrefix(e.Name(), "stderr.")) {
			sum += fi.Size()
		}
	}
	return sum, nil
}

// tail reads one stream from its rotated files NAME.0, NAME.1, and so on.
type tail struct {
	root   *os.Root
	name   string
	stderr bool
	number int
	file   *os.File
	buf    []byte
}

// numbers returns the numbers of the retained files, ascending.
func (t *tail) numbers() ([]int, error) {
	entries, err := fs.ReadDir(t.root.FS(), ".")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		if rest, ok := strings.CutPrefix(e.Name(), t.name+"."); ok {
			if n, err := strconv.Atoi(rest); err == nil {
				out = append(out, n)
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

func (t *tail) path(number int) string { return logName(t.name, number) }

// seek goes to the position bytes before the end of the stream. If bytes is 0, it goes to
// the beginning of the retained output.
func (t *tail) seek(bytes int64) error {
	numbers, err := t.numbers()
	if err != nil || len(numbers) == 0 {
		return err
	}
	t.number = numbers[0]
	if bytes <= 0 {
		return nil
	}
	for _, n := range slices.Backward(numbers) {
		fi, err := t.root.Stat(t.path(n))
		if errors.Is(err, fs.ErrNotExist) {
			break // a rotation removed the file
		}
		if err != nil {
			return err
		}
		t.number = n
		if fi.Size() >= bytes {
			t.file, err = openFile(t.root, t.path(n), os.O_RDONLY)
			if err != nil {
				return err
			}
			_, err = t.file.Seek(fi.Size()-bytes, io.SeekStart)
			return err
		}
		bytes -= fi.Size()
	}
	return nil
}

// seekLines goes to the beginning of the last lines. If there are fewer lines, it goes to
// the beginning of the retained output. It reads backward, and only as far as needed.
func (t *tail) seekLines(lines int) error {
	numbers, err := t.numbers()
	if err != nil {
		return err
	}
	buf := make([]byte, driver.MaxChunk)
	last := true // the next byte is the last one of the stream; if it is a line end, no line follows it
	for _, n := range slices.Backward(numbers) {
		f, err := openFile(t.root, t.path(n), os.O_RDONLY)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a rotation removed the file
		}
		if err != nil {
			return err
		}
		t.close()
		t.number, t.file = n, f
		end, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return err
		}
		for end > 0 {
			block := buf[:min(int64(len(buf)), end)]
			end -= int64(len(block))
			if _, err := f.ReadAt(block, end); err != nil {
				return err
			}
			for i, b := range slices.Backward(block) {
				if b == '\n' && !last {
					lines--
				}
				last = false
				if lines == 0 {
					_, err := f.Seek(end+int64(i)+1, io.SeekStart)
					return err
				}
			}
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	return nil
}

// read emits the output up to its present end.
func (t *tail) read(ctx context.Context, emit func(driver.LogChunk) error) error {
	if t.buf == nil {
		t.buf = make([]byte, driver.MaxChunk)
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if ok, err := t.open(); err != nil || !ok {
			return err
		}
		// A file that has a successor does not grow. This is checked before the read to the
		// end, because otherwise the last bytes could be missed.
		_, err := t.root.Stat(t.path(t.number + 1))
		finished := err == nil
		n, err := t.file.Read(t.buf)
		if n > 0 {
			if err := emit(driver.LogChunk{Stderr: t.stderr, Data: t.buf[:n]}); err != nil {
				return err
			}
			continue
		}
		if err != nil && err != io.EOF {
			return err
		}
		if !finished {
			return nil
		}
		t.close()
		t.number++
	}
}

// open opens the present file. If a rotation has removed that file, open opens the oldest
// one. It returns false if no file exists yet.
func (t *tail) open() (bool, error) {
	if t.file != nil {
		return true, nil
	}
	f, err := openFile(t.root, t.path(t.number), os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		numbers, err := t.numbers()
		if err != nil || len(numbers) == 0 {
			return false, err
		}
		t.number = max(t.number, numbers[0])
		f, err = openFile(t.root, t.path(t.number), os.O_RDONLY)
		if err != nil {
			return false, nil // the next call opens the file
		}
		t.file = f
		return true, nil
	}
	t.file = f
	return err == nil, err
}

func (t *tail) close() {
	if t.file != nil {
		t.file.Close()
		t.file = nil
	}
}
