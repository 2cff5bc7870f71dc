package job

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// files validates templates, artifacts and secrets, which the agent writes to files before
// the task starts.
func (c *checker) files(p string, t *nusav1.Task) {
	at := c.join(p, "templates")
	c.count(at, len(t.GetTemplates()), MaxTemplates, "templates")
	for i, f := range t.GetTemplates() {
		item := fmt.Sprintf("%s[%d]", at, i)
		c.text(c.join(item, "text"), f.GetText(), maxText)
		c.inside(c.join(item, "to"), f.GetTo())
		c.mode(c.join(item, "mode"), f.GetMode())
		if strings.HasSuffix(f.GetTo(), "/") {
			c.fail(c.join(item, "to"), "%q is a folder: name the file", clip(f.GetTo()))
		}
	}
	at = c.join(p, "artifacts")
	c.count(at, len(t.GetArtifacts()), MaxArtifacts, "artifacts")
	for i, a := range t.GetArtifacts() {
		c.artifact(fmt.Sprintf("%s[%d]", at, i), a)
	}
	at = c.join(p, "secrets")
	c.count(at, len(t.GetSecrets()), MaxSecrets, "secrets")
	for i, s := range t.GetSecrets() {
		item := fmt.Sprintf("%s[%d]", at, i)
		c.name(item, s)
		if slices.Contains(t.GetSecrets()[:i], s) {
			c.fail(item, "%q is given twice", clip(s))
		}
	}
}

func (c *checker) artifact(p string, a *nusav1.Artifact) {
	at := c.join(p, "source")
	c.text(at, a.GetSource(), 4096)
	u, err := url.Parse(a.GetSource())
	switch {
	case err != nil || u.Scheme == "" || u.Host == "" && u.Scheme != "file":
		c.fail(at, "%q is not an address such as https://host/file", clip(a.GetSource()))
	case u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "file":
		c.fail(at, "%s is none of https, http, file", clip(u.Scheme))
	case u.Scheme == "file" && (u.Host != "" || !path.IsAbs(u.Path) || path.Clean(u.Path) != u.Path):
		c.fail(at, "%q is not file:// and a clean absolute path", clip(a.GetSource()))
	case u.Scheme != "file" && strings.HasSuffix(a.GetTo(), "/") && (u.Path == "" || strings.HasSuffix(u.Path, "/")):
		c.fail(at, "%q ends without a file's name: name the file in to", clip(a.GetSource()))
	case u.Scheme == "http" && a.GetChecksum() == "":
		c.fail(c.join(p, "checksum"), "is missing: over http the file can be changed on its way")
	}
	if a.GetChecksum() != "" && !isChecksum(a.GetChecksum()) {
		c.fail(c.join(p, "checksum"), "must be sha256: and 64 hexadecimal digits, or sha512: and 128")
	}
	c.inside(c.join(p, "to"), a.GetTo())
	c.mode(c.join(p, "mode"), a.GetMode())
}

func isChecksum(s string) bool {
	kind, sum, _ := strings.Cut(s, ":")
	digits := map[string]int{"sha256": 64, "sha512": 128}[kind]
	_, err := hex.DecodeString(sum)
	return digits > 0 && len(sum) == digits && err == nil
}

var octal = lazyregexp.New(`^0?[0-7]{3}$`)

// mode validates the permissions of owner, group and others. Set-uid and sticky bits are
// refused.
func (c *checker) mode(p, mode string) {
	if mode != "" && !octal().MatchString(mode) {
		c.fail(p, "%q is not permissions such as \"0644\"", clip(mode))
	}
}

// inside validates a path, which must be below the allocation folder.
func (c *checker) inside(p, to string) {
	c.text(p, to, 1024)
	clean := path.Clean(to)
	switch {
	case to == "":
		c.fail(p, "is missing")
	case path.IsAbs(to) || clean == ".." || clean == "." || strings.HasPrefix(clean, "../"):
		c.fail(p, "%q is not a path inside the allocation folder", clip(to))
	}
}

// MaxServices bounds the services of a group.
const MaxServices = 16

// checkServices validates the services of a group.
func checkServices(c *checker, p string, g *nusav1.Group) {
	c.count(p, len(g.GetServices()), MaxServices, "services")
	for _, k := range sorted(g.GetServices()) {
		at, s := c.join(p, k), g.GetServices()[k]
		if !catalog.IsLabel(k) {
			c.fail(at, "not a service's name: 1 to 63 of a-z, 0-9 and -, with a letter or a digit at both ends, because it becomes a part of a DNS name")
		}
		switch port := s.GetPort(); {
		case port == "":
			c.fail(c.join(at, "port"), "is missing: name one of the group's ports")
		case g.GetPorts()[port] == nil:
			c.fail(c.join(at, "port"), "the group has no port %q%s", clip(port), didYouMean(port, sorted(g.GetPorts())))
		}
		serviceTags(c, c.join(at, "tags"), s.GetTags())
		for i, task := range s.GetChecks() {
			if g.GetTasks()[task] == nil {
				c.fail(fmt.Sprintf("%s[%d]", c.join(at, "checks"), i), "the group has no task %q%s", clip(task), didYouMean(task, sorted(g.GetTasks())))
			}
		}
	}
}

func serviceTags(c *checker, p string, tags []string) {
	c.count(p, len(tags), catalog.MaxTags, "tags")
	for i, tag := range tags[:min(len(tags), catalog.MaxTags)] {
		at := fmt.Sprintf("%s[%d]", p, i)
		switch {
		case !catalog.IsLabel(tag):
			c.fail(at, "%q is not a tag: 1 to 63 of a-z, 0-9 and -, with a letter or a digit at both ends", clip(tag))
		case slices.Contains(tags[:i], tag):
			c.fail(at, "%q is there twice", tag)
		}
	}
}
