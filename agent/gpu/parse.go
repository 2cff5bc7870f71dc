package gpu

import (
	"cmp"
	"errors"
	"os/exec"
	"strconv"
	"strings"
)

// queryArgs ask nvidia-smi for one line a device.
var queryArgs = []string{"--query-gpu=pci.bus_id,uuid,name,memory.total,ecc.errors.uncorrected.volatile.total,compute_mode,mig.mode.current", "--format=csv,noheader,nounits"}

// The columns of the answer.
const (
	columnAddress = iota
	columnUUID
	columnModel
	columnMemory
	columnErrors
	columnMode
	columnMIG
	columns
)

// parseInformation reads the file `information` of the kernel's driver.
func parseInformation(address, text string) Device {
	d := Device{Address: address}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(name) {
		case "Model":
			d.Model = modelOf(value)
		case "GPU UUID":
			if !strings.Contains(value, "?") { // a ?: the driver has not initialised the device yet
				d.UUID = value
			}
		case "GPU Excluded":
			if strings.EqualFold(value, "yes") {
				d.Problem = "the kernel's driver excludes the device"
			}
		}
	}
	return d
}

// modelOf returns the name of a model as job files write it: nvidia-h100-80gb-hbm3 for "NVIDIA
// H100 80GB HBM3".
func modelOf(name string) string {
	return strings.Join(strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.')
	}), "-")
}

// merge adds the rows of nvidia-smi to the devices of the kernel's driver. failure is the error of
// nvidia-smi. If nvidia-smi is not installed, merge adds nothing.
func merge(devices []Device, answer string, failure error) []Device {
	rows := map[string][]string{}
	for line := range strings.Lines(answer) {
		row := strings.Split(strings.TrimSpace(line), ",")
		if len(row) != columns {
			continue // a message
		}
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		rows[normal(row[columnAddress])] = row
	}
	for i := range devices {
		d := &devices[i]
		row := rows[normal(d.Address)]
		switch {
		case row != nil:
			d.read(row)
		case errors.Is(failure, exec.ErrNotFound):
		case failure != nil && len(rows) == 0:
			d.Problem = cmp.Or(d.Problem, "nvidia-smi: "+failure.Error())
		default:
			d.Problem = cmp.Or(d.Problem, "nvidia-smi does not list the device")
		}
		if d.UUID == "" {
			d.Problem = cmp.Or(d.Problem, "the UUID of the device is unknown: install nvidia-smi, or start nvidia-persistenced")
		}
	}
	return devices
}

// read reads a row of nvidia-smi. A value that a device does not have is "[N/A]".
func (d *Device) read(row []string) {
	if strings.HasPrefix(row[columnUUID], "GPU-") {
		d.UUID = row[columnUUID]
	}
	if m := row[columnModel]; m != "" && !strings.HasPrefix(m, "[") {
		d.Model = modelOf(m)
	}
	if mib, err := strconv.ParseInt(row[columnMemory], 10, 64); err == nil && mib > 0 && mib < 1<<30 {
		d.MemoryBytes = mib << 20
	}
	d.Exclusive = strings.HasPrefix(strings.ToLower(row[columnMode]), "exclusive")
	n, err := strconv.ParseInt(row[columnErrors], 10, 64)
	switch {
	case err == nil && n > 0:
		d.Problem = cmp.Or(d.Problem, strconv.FormatInt(n, 10)+" uncorrected memory errors since the driver was loaded")
	case strings.Contains(strings.Join(row, ","), "GPU requires reset"), strings.Contains(strings.Join(row, ","), "ERR!"):
		d.Problem = cmp.Or(d.Problem, "nvidia-smi says that the device must be reset")
	case strings.EqualFold(row[columnMode], "Prohibited"):
		d.Problem = cmp.Or(d.Problem, "the compute mode of the device is Prohibited")
	case strings.EqualFold(row[columnMIG], "Enabled"):
		d.Problem = cmp.Or(d.Problem, "MIG divides the device, and tasks get only whole devices")
	}
}

// normal returns an address of the PCI bus in the kernel's form. nvidia-smi writes the domain with
// eight digits, and the kernel with four.
func normal(address string) string {
	address = strings.ToLower(address)
	if domain, rest, ok := strings.Cut(address, ":"); ok && len(domain) == 8 && strings.HasPrefix(domain, "0000") {
		return domain[4:] + ":" + rest
	}
	return address
}
