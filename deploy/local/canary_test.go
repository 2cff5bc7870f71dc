//go:build integration

package local_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// canary is a secret with a text that occurs nowhere else.
type canary struct {
	name string
	// forms are how the secret may be written.
	forms [][]byte
	// places are the files and folders, below that of the test, that may have the secret.
	places []string
}

// canaries runs a federation into which secrets were put.
type canaries struct {
	*joined
	list []canary
	// said is what commands have printed, by command.
	said map[string]string
}

// add adds a secret of text that may be in some places.
func (c *canaries) add(name, text string, places ...string) {
	c.list = append(c.list, canary{name, [][]byte{
		[]byte(text), []byte(hex.EncodeToString([]byte(text))), []byte(base64.StdEncoding.EncodeToString([]byte(text))),
	}, places})
}

// addToken adds the secret part of a token.
func (c *canaries) addToken(name, token string) {
	part := strings.FieldsFunc(token, func(r rune) bool { return r == '.' || r == '_' })
	secret := slices.MaxFunc(part, func(a, b string) int { return len(a) - len(b) })
	if len(part) == 4 {
		secret = part[2] // a join token ends with the hash of the root
	}
	c.add(name, secret)
}

// addKey adds the private key of a PEM file.
func (c *canaries) addKey(name, file string, places ...string) {
	c.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		c.Fatal(err)
	}
	signer, err := pki.ParseKey(text)
	if err != nil {
		c.Fatal(err)
	}
	key, ok := signer.(*ecdsa.PrivateKey)
	if !ok {
		c.Fatalf("%s has a key of type %T", file, signer)
	}
	raw, err := key.Bytes()
	if err != nil {
		c.Fatal(err)
	}
	lines := bytes.Split(text, []byte("\n"))
	c.list = append(c.list, canary{name, [][]byte{raw, []byte(hex.EncodeToString(raw)), lines[1], lines[2]}, places})
}

// run runs a command of the client, and keeps what the command prints.
func (c *canaries) run(want bool, env []string, args ...string) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.bin, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if (err == nil) != want {
		c.Errorf("nusa %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	c.said[strings.Join(args, " ")] += string(out)
}

// secretKey returns the key of gossip in a new file.
func (c *canaries) secretKey() (file, text string) {
	c.Helper()
	file, text = filepath.Join(c.TempDir(), "gossip.key"), base64.StdEncoding.EncodeToString([]byte("canary-of-the-gossip-key-0123456"))
	if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
		c.Fatal(err)
	}
	return file, text
}

const canaryJob = `
name: canary
groups:
  main:
    tasks:
      main:
        driver: process
        config: {command: /bin/sh, args: [-c, "echo started; exec sleep 1000"]}
        resources: {cpu: 10m, memory: 16MiB}
        secrets: [db]
`

// TestSecretsStayWhereTheyBelong: after secrets went through every way in, none is in a log, in the
// arguments of a process, in what commands print, in an export of the audit trail, or in a file
// beside those that are for the secret.
func TestSecretsStayWhereTheyBelong(t *testing.T) {
	t.Parallel()
	bin, err := filepath.Abs("../../bin/nusa")
	if err != nil {
		t.Fatal(err)
	}
	c := &canaries{joined: &joined{T: t, dir: t.TempDir(), bin: bin, port: freeport.Reserve(t, ports)}, said: map[string]string{}}
	leftover.Nothing(t, c.dir)
	ca := filepath.Join(t.TempDir(), "ca")
	c.run(true, nil, "ca", "init", "--dir", ca)
	keys, err := filepath.Glob(filepath.Join(ca, "*key*.pem"))
	if err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	c.addKey("the key of the root", keys[0])
	gossipFile, gossip := c.secretKey()
	c.add("a gossip key", gossip)
	c.add("a gossip key, decoded", "canary-of-the-gossip-key-0123456")
	const probe, secret = "canary-of-the-probe-key-91f1", "canary-of-a-task-5b7e"
	c.add("a probe key", probe)
	secrets := filepath.Join(t.TempDir(), "secrets")
	if err := os.MkdirAll(filepath.Join(secrets, "default"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(secrets, "default", "db"), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	c.add("a secret of a task", secret)

	env := []string{"NUSA_LOG_LEVEL=debug"}
	c.start("g1", env, "global", "--ca-cert", filepath.Join(ca, "root.pem"), "--ca-key", keys[0], "--grpc-addr", c.addr(0), "--http-addr", c.addr(1), "--etcd-client-addr", c.addr(2))
	c.until("g1", "server", "list")
	token := func(name string, args ...string) string {
		text := c.token(args...)
		c.addToken(name, text)
		return text
	}
	c.start("s1", append(env, "NUSA_JOIN_TOKEN="+token("a token of a server", "--role", "server"), "NUSA_PROBE_KEY="+probe), "regional", "--region", "jakarta",
		"--fast-raft", "--bootstrap-expect", "1", "--global", c.addr(0), "--grpc-addr", c.addr(10), "--raft-addr", c.addr(11), "--gossip-addr", c.addr(12),
		"--probe-addr", c.addr(13), "--http-addr", c.addr(14), "--gossip-key-file", gossipFile)
	c.until("connected", "region", "list")
	used := token("a token of an agent", "--role", "agent")
	c.start("n1", append(env, "NUSA_JOIN_TOKEN="+used), "agent", "--region", "jakarta", "--servers", c.addr(10), "--http-addr", c.addr(20),
		"--leave-on-shutdown", "--secrets-dir", secrets, "--docker-auth", c.registry())
	c.until("ready", "node", "list")
	for member, dir := range map[string]string{"an operator": "g1/operator", "a global server": "g1/identity", "a regional server": "s1/identity", "an agent": "n1/identity", "the authority of a region": "s1/identity/authority"} {
		file := filepath.Join(c.dir, dir, "key.pem")
		if _, err := os.Stat(file); err == nil || member != "a global server" {
			c.addKey("the key of "+member, file, dir+"/key.pem")
		}
	}
	c.work(secret)
	c.logins()
	c.webhooks()
	c.spares()
	c.buses()
	c.mistakes(used)
	c.noCores()
	c.search()
}

// work uses secrets as they are meant to be used, and runs the commands that print what the federation knows.
func (c *canaries) work(secret string) {
	c.Helper()
	server := []string{"--addr", c.addr(0), "--identity", filepath.Join(c.dir, "g1", "operator")}
	client := func(args ...string) { c.run(true, nil, append(args, server...)...) }
	out := c.TempDir()
	access := filepath.Join(out, "access")
	client("auth", "token", "create", "--role", "admin", "--out", access)
	text, err := os.ReadFile(access)
	if err != nil {
		c.Fatal(err)
	}
	c.addToken("an access token", strings.TrimSpace(string(text)))
	c.run(true, []string{"NUSA_TOKEN_FILE=" + access}, append([]string{"auth", "whoami", "-o", "json"}, server...)...)
	c.run(true, []string{"NUSA_TOKEN=" + strings.TrimSpace(string(text))}, append([]string{"job", "list", "-o", "json"}, server...)...)
	if os.Geteuid() == 0 { // only root gives a task its secrets
		file := filepath.Join(out, "canary.yaml")
		if err := os.WriteFile(file, []byte(canaryJob), 0o600); err != nil {
			c.Fatal(err)
		}
		client("job", "run", file, "--timeout", "100s")
		c.run(true, nil, append(append([]string{"alloc", "exec"}, server...), "canary/main/0", "--", "/bin/sh", "-c", `grep -q `+secret[:12]+` "$NUSA_SECRETS_DIR/db"`)...)
		for _, args := range [][]string{{"job", "status", "canary"}, {"job", "explain", "canary"}, {"alloc", "list"}, {"alloc", "status", "canary/main/0"}, {"alloc", "stats", "canary/main/0"}} {
			client(append(args, "-o", "json")...)
		}
		client("job", "logs", "canary")
		client("job", "export", "canary")
		client("job", "stop", "canary", "--purge")
	}
	for _, args := range [][]string{
		{"token", "list"}, {"auth", "token", "list"}, {"auth", "role", "list"}, {"auth", "binding", "list"}, {"audit", "list"}, {"audit", "list", "--region", "jakarta"},
		{"node", "list"}, {"node", "status", "n1"}, {"region", "list"}, {"region", "status", "jakarta"}, {"server", "list"}, {"topology", "show"}, {"job", "list"}, {"version", "--server"},
	} {
		client(append(args, "-o", "json")...)
	}
	for _, region := range []string{"", "jakarta"} {
		trail := filepath.Join(c.dir, "trail"+region)
		client("audit", "export", "--file", trail, "--region", region)
	}
}

// mistakes gives secrets in wrong ways. The errors must not have them.
func (c *canaries) mistakes(used string) {
	c.Helper()
	client := []string{"--addr", c.addr(0), "--identity", filepath.Join(c.dir, "g1", "operator")}
	const wrong = "canary-of-a-wrong-token-77aa"
	c.add("a wrong token", wrong)
	c.run(false, []string{"NUSA_TOKEN=" + wrong}, append([]string{"job", "list"}, client...)...)
	c.run(false, []string{"NUSA_TOKEN=" + wrong + " and more"}, append([]string{"job", "list", "-o", "json"}, client...)...)
	c.run(false, []string{"NUSA_TOKEN=nusa_" + wrong}, "job", "list", "--addr", c.addr(0))
	part := strings.Split(used, ".")
	for n, bad := range []string{"nusa1." + wrong, used, strings.Join([]string{part[0], part[1], part[2], strings.Repeat("0", 32)}, "."), used + "x"} {
		name := fmt.Sprintf("m%d", n)
		c.start(name, []string{"NUSA_JOIN_TOKEN=" + bad, "NUSA_LOG_LEVEL=debug"}, "agent", "--region", "jakarta", "--servers", c.addr(10), "--http-addr", "-")
		c.logged(name, "token")
	}
	file := filepath.Join(c.TempDir(), "wrong")
	for _, text := range []string{wrong, "-----BEGIN PRIVATE KEY-----\n" + wrong + "\n-----END PRIVATE KEY-----\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			c.Fatal(err)
		}
		data := filepath.Join(c.dir, "wrong")
		free := []string{"--data-dir", data, "--name", "w", "--grpc-addr", c.addr(30), "--http-addr", "-"}
		c.run(false, nil, append([]string{"global", "--ca-cert", file, "--ca-key", file}, free...)...)
		c.run(false, nil, append([]string{"regional", "--region", "x", "--raft-addr", c.addr(31), "--gossip-addr", c.addr(32), "--probe-addr", c.addr(33), "--gossip-key-file", file}, free...)...)
		c.run(false, []string{"NUSA_PROBE_KEY=" + wrong[:9]}, append([]string{"regional", "--region", "x", "--raft-addr", c.addr(31), "--gossip-addr", c.addr(32), "--probe-addr", c.addr(33), "--gossip-key-file", file}, free...)...)
		c.run(false, nil, append([]string{"global", "--etcd-endpoints", c.addr(34), "--etcd-user", "u", "--etcd-password-file", file, "--etcd-ca-file", file}, free...)...)
		c.run(false, nil, "ca", "issue", "operator/x", "--dir", filepath.Dir(file), "--out", filepath.Join(c.TempDir(), "x"))
	}
	// A client that says a secret where none belongs.
	if conn, err := net.DialTimeout("tcp", c.addr(1), 5*time.Second); err == nil {
		_, _ = fmt.Fprintf(conn, "GET /%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", "livez", wrong)
		conn.Close()
	}
}

// noCores: the servers write no core files, which would have their keys.
func (c *canaries) noCores() {
	c.Helper()
	for _, name := range []string{"g1", "s1"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", c.pid(name)))
		_, rest, _ := strings.Cut(string(text), "Max core file size")
		if f := strings.Fields(rest); err != nil || len(f) < 2 || f[0] != "0" || f[1] != "0" {
			c.Errorf("%s writes core files: %v, %v", name, f, err)
		}
	}
}

// search looks for each secret wherever the federation may have written it.
func (c *canaries) search() {
	c.Helper()
	check := func(where string, text []byte, may func(*canary) bool) {
		for i := range c.list {
			for _, form := range c.list[i].forms {
				if bytes.Contains(text, form) && !may(&c.list[i]) {
					c.Errorf("%s has %s", where, c.list[i].name)
				}
			}
		}
	}
	never := func(*canary) bool { return false }
	for command, out := range c.said {
		check("nusa "+command, []byte(out), never)
	}
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		c.Fatal(err)
	}
	for _, file := range files {
		if line, err := os.ReadFile(file); err == nil && bytes.Contains(line, []byte(c.dir)) {
			check(string(bytes.ReplaceAll(line, []byte{0}, []byte(" "))), line, never)
		}
	}
	searched := 0
	err = filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // files come and go meanwhile
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		searched++
		rel, err := filepath.Rel(c.dir, path)
		if err != nil {
			return err
		}
		check(rel, text, func(k *canary) bool { return slices.Contains(k.places, rel) })
		return nil
	})
	if err != nil || searched < 20 || len(c.list) < 12 || len(c.said) < 20 {
		c.Errorf("%d secrets, %d files and %d commands were searched: %v", len(c.list), searched, len(c.said), err)
	}
	for i := range c.list { // the search finds each planted secret
		for _, place := range c.list[i].places {
			text, err := os.ReadFile(filepath.Join(c.dir, place))
			if err != nil || !slices.ContainsFunc(c.list[i].forms, func(form []byte) bool { return bytes.Contains(text, form) }) {
				c.Errorf("%s is not in %s: %v", c.list[i].name, place, err)
			}
		}
	}
}
