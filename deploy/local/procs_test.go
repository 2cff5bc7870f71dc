//go:build integration

package local_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// pid returns the process id of a role.
func (j *joined) pid(name string) int {
	j.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		j.Fatal(err)
	}
	want := []byte("\x00--data-dir\x00" + filepath.Join(j.dir, name) + "\x00")
	for _, file := range files {
		if line, err := os.ReadFile(file); err == nil && bytes.HasPrefix(line, []byte(j.bin+"\x00")) && bytes.Contains(line, want) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				j.Fatal(err)
			}
			return pid
		}
	}
	j.Fatalf("no process of %s runs", name)
	return 0
}

// socket is a port on which a process listens.
type socket struct {
	addr string
	udp  bool
}

// sockets returns the ports on which a process listens.
func sockets(t *testing.T, pid int) []socket {
	t.Helper()
	own := map[string]bool{}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		to, err := os.Readlink(link)
		if inode, ok := strings.CutPrefix(to, "socket:["); err == nil && ok {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	const listening, unconnected = "0A", "07"
	var out []socket
	for file, state := range map[string]string{"tcp": listening, "tcp6": listening, "udp": unconnected, "udp6": unconnected} {
		text, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, file))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(text); lines.Scan(); {
			f := strings.Fields(lines.Text()) // number, local, remote, state, …, inode in column 10
			if len(f) > 9 && f[3] == state && own[f[9]] {
				out = append(out, socket{addressOf(t, f[1]), strings.HasPrefix(file, "udp")})
			}
		}
		text.Close()
	}
	return out
}

// addressOf reads an address as /proc/net shows it. Each word of four bytes is in the order of the processor.
func addressOf(t *testing.T, text string) string {
	t.Helper()
	host, port, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(host)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+3 < len(b); i += 4 {
		b[i], b[i+1], b[i+2], b[i+3] = b[i+3], b[i+2], b[i+1], b[i]
	}
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		t.Fatal(err)
	}
	ip := net.IP(b)
	if ip.IsUnspecified() {
		ip = net.IPv4(127, 0, 0, 1)
	}
	return net.JoinHostPort(ip.String(), strconv.FormatUint(n, 10))
}

// residentMiB returns the resident memory of a process.
func residentMiB(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib >> 10
}
