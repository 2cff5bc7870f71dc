package docker

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// Logs implements driver.Driver. The engine rotates and reads the files. If the engine ends
// a stream early, Logs reads the stream again and skips the output that was emitted
// already. It recognises that output by the engine's time stamps. If the files rotate
// quickly, an engine that follows them may omit output.
func (d *Driver) Logs(ctx context.Context, id driver.ID, o driver.LogOptions, emit func(driver.LogChunk) error) error {
	st, _, err := d.status(ctx, id)
	if err != nil {
		return err
	}
	rec, _ := d.records.get(id)
	s := &splitter{emit: emit}
	if o.TailBytes > 0 || o.TailLines > 0 {
		var ends [2]lineEnds
		all := &splitter{emit: func(c driver.LogChunk) error {
			ends[map[bool]int{true: 1}[c.Stderr]].add(c.Data, o.TailLines)
			return nil
		}}
		if err := d.read(ctx, rec.Container, o, false, all); err != nil {
			return fmt.Errorf("logs of %s: %w", id, err)
		}
		for i, n := range all.bytes {
			s.skip[i] = max(0, n-o.TailBytes)
			if o.TailLines > 0 {
				s.skip[i] = ends[i].start(o.TailLines)
			}
		}
	}
	for o.Follow && st.State != driver.Ended {
		_ = d.read(ctx, rec.Container, o, true, s) // status reports why the stream ended
		if s.err != nil || ctx.Err() != nil {
			return cmp.Or(s.err, ctx.Err())
		}
		st, _, err = d.status(ctx, id)
		if err != nil {
			return err
		}
		if st.State != driver.Ended {
			if err := pause(ctx, retryPause/10); err != nil {
				return err
			}
		}
	}
	err = d.read(ctx, rec.Container, o, false, s)
	if s.err != nil {
		return s.err
	}
	if err != nil {
		return fmt.Errorf("logs of %s: %w", id, err)
	}
	return nil
}

// read emits the container's output from the beginning. If the container is missing, read
// emits nothing.
func (d *Driver) read(ctx context.Context, container string, o driver.LogOptions, follow bool, s *splitter) error {
	if !o.Stdout && !o.Stderr {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	res, err := d.cli.ContainerLogs(ctx, container, client.ContainerLogsOptions{ShowStdout: o.Stdout, ShowStderr: o.Stderr, Follow: follow, Timestamps: true})
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return d.address.wrap(err)
	}
	defer res.Close()
	s.again()
	_, err = stdcopy.StdCopy(s.stream(0), s.stream(1), res)
	if err != nil && s.err == nil {
		return d.address.wrap(err)
	}
	return s.err
}

// lineEnds finds the offset at which the last lines of a stream begin, in one pass.
type lineEnds struct {
	read int64   // number of bytes read
	ends []int64 // offsets after the latest line ends, in a ring buffer
	n    int64   // number of line ends so far
}

// add records the line ends of the next bytes. lines is the argument that start will get.
func (l *lineEnds) add(p []byte, lines int) {
	if lines == 0 {
		return
	}
	for i, b := range p {
		if b != '\n' {
			continue
		}
		// The ring has one entry more than the wanted lines, because the end of the stream
		// may itself be the latest line end.
		if at := l.read + int64(i) + 1; len(l.ends) <= lines {
			l.ends = append(l.ends, at)
		} else {
			l.ends[l.n%int64(len(l.ends))] = at
		}
		l.n++
	}
	l.read += int64(len(p))
}

// start returns the position in the stream, in bytes, at which its last lines begin. lines
// is their number.
func (l *lineEnds) start(lines int) int64 {
	n := l.n
	if size := int64(len(l.ends)); n > 0 && l.ends[(n-1)%size] == l.read {
		n-- // no line begins after the last line end
	}
	if n -= int64(lines); n < 0 {
		return 0
	}
	return l.ends[n%int64(len(l.ends))]
}

// splitter emits two streams in chunks. It emits each message once, however often it reads
// the streams from the beginning.
type splitter struct {
	emit  func(driver.LogChunk) error
	skip  [2]int64    // bytes to skip from the beginning
	bytes [2]int64    // bytes emitted
	at    [2]position // position of the latest message read
	done  [2]position // position of the latest emitted message
	new   [2]bool     // the next message was not emitted yet
	err   error       // the error of emit
}

// position identifies a message in a stream by its time and its number among the messages
// of that time. The parts of a long line have the same time.
type position struct {
	time string // the text has a fixed length and is in UTC
	n    int
}

// again prepares the splitter for reading the streams from the beginning.
func (s *splitter) again() {
	s.at = [2]position{}
	s.new = [2]bool{s.done[0].n == 0, s.done[1].n == 0}
}

func (s *splitter) stream(i int) io.Writer { return streamWriter{s, i} }

type streamWriter struct {
	s *splitter
	i int
}

// Write emits one message, which consists of its time, a space, and output.
func (w streamWriter) Write(p []byte) (int, error) {
	s, i := w.s, w.i
	stamp, data, ok := bytes.Cut(p, []byte{' '})
	if !ok {
		return 0, fmt.Errorf("the engine sent a message without a time: %q", p[:min(len(p), 64)])
	}
	at := &s.at[i]
	if at.time != string(stamp) {
		*at = position{time: string(stamp)}
	}
	at.n++
	if !s.new[i] {
		// Skip messages only up to the first later one, because a clock may be set back.
		done := s.done[i]
		if at.time < done.time || at.time == done.time && at.n <= done.n {
			return len(p), nil
		}
		s.new[i] = true
	}
	s.done[i] = *at
	skip := min(int64(len(data)), s.skip[i])
	s.skip[i] -= skip
	for rest := data[skip:]; len(rest) > 0; {
		n := min(len(rest), driver.MaxChunk)
		s.err = s.emit(driver.LogChunk{Stderr: i == 1, Data: rest[:n]})
		if s.err != nil {
			return 0, s.err
		}
		s.bytes[i] += int64(n)
		rest = rest[n:]
	}
	return len(p), nil
}

// Size returns the size of the engine's files, which include the framing of the output. It
// returns 0 if the driver cannot see the files.
func (d *Driver) Size(ctx context.Context, id driver.ID) (int64, error) {
	rec, ok := d.records.get(id)
	if !ok || rec.Container == "" {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	got, err := d.cli.ContainerInspect(ctx, rec.Container, client.ContainerInspectOptions{})
	switch {
	case cerrdefs.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, d.address.wrap(err)
	case got.Container.LogPath == "" || !d.local():
		return 0, nil
	}
	var sum int64
	for n, path := 0, got.Container.LogPath; ; n++ {
		if n > 0 {
			path = fmt.Sprintf("%s.%d", got.Container.LogPath, n)
		}
		fi, err := os.Stat(path)
		if err != nil {
			return sum, nil
		}
		sum += fi.Size()
	}
}
