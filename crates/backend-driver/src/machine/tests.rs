//! The machine's NVML, in the likeness of one: which function is called how, and what becomes of its answers.
#![allow(clippy::unwrap_used)]

use super::nvml::Nvml;
use std::process::Command;
use wire::{Gpu, Pci, Quantity as Q, Text};

/// Two GPUs, told apart by their handles. What is not here is not had.
const LIKENESS: &str = r#"
#include <stdio.h>
#include <string.h>
typedef struct { int index; } *Device;
static int ready;
static struct { int index; } devices[2] = {{0}, {1}};
int nvmlInit_v2(void) { ready = 1; return 0; }
int nvmlSystemGetCudaDriverVersion(int *v) { *v = 13010; return 0; }
int nvmlSystemGetDriverVersion(char *v, unsigned n) { snprintf(v, n, "580.1"); return 0; }
int nvmlSystemGetNVMLVersion(char *v, unsigned n) { snprintf(v, n, "13.580.1"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = ready ? 2 : 0; return !ready; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, Device *d) { *d = (Device)&devices[i]; return 0; }
int nvmlDeviceGetUUID(Device d, char *to, unsigned n) { snprintf(to, n, "GPU-%d", d->index); return 0; }
int nvmlDeviceGetName(Device d, char *to, unsigned n) { snprintf(to, n, "A GPU"); return 0; }
int nvmlDeviceGetSerial(Device d, char *to, unsigned n) { return d->index ? 3 : (snprintf(to, n, "42"), 0); }
int nvmlDeviceGetGspFirmwareVersion(Device d, char *to) { return d->index ? (strcpy(to, "580.2"), 0) : 3; }
struct pci { char old[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(Device d, struct pci *p) {
    p->domain = 0x10000, p->bus = 0x1b + d->index, p->device = 2, p->id = 7, p->sub = 8;
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(Device d, int *major, int *minor) { *major = 9, *minor = 1; return 0; }
int nvmlDeviceGetPowerUsage(Device d, unsigned *mw) { *mw = 70000 + d->index; return 0; }
int nvmlDeviceGetFanSpeed(Device d, unsigned *percent) { *percent = 50; return 3; }
int nvmlDeviceGetTotalEnergyConsumption(Device d, unsigned long long *mj) { *mj = 1ull << 40; return 0; }
int nvmlDeviceGetEccMode(Device d, unsigned *now, unsigned *next) { *now = 1, *next = 0; return 0; }
int nvmlDeviceGetClockInfo(Device d, unsigned which, unsigned *mhz) { *mhz = 1000 + which; return which == 1 ? 3 : 0; }
int nvmlDeviceGetCpuAffinity(Device d, unsigned n, unsigned long *set) {
    memset(set, 0, n * sizeof *set), set[1] = 0xf0;
    return n < 2 ? 7 : 0;
}
int nvmlDeviceGetMemoryAffinity(Device d, unsigned n, unsigned long *set, unsigned scope) { set[0] = 2; return scope; }
struct memory { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(Device d, struct memory *m) {
    if (m->version != (sizeof *m | 2 << 24)) return 25;
    m->total = 100, m->reserved = 10, m->free = 60, m->used = 30;
    return d->index ? 3 : 0;
}
int nvmlDeviceGetMemoryInfo(Device d, unsigned long long *m) { m[0] = 200, m[1] = 150, m[2] = 50; return 0; }
int nvmlDeviceGetUtilizationRates(Device d, unsigned *u) { u[0] = 98, u[1] = 12; return 0; }
int nvmlDeviceGetP2PStatus(Device a, Device b, unsigned what, unsigned *status) {
    *status = what == 1 ? 5 : 0;
    return a == b ? 2 : 0;
}
int nvmlDeviceGetTopologyCommonAncestor(Device a, Device b, unsigned *level) { *level = a == b ? 0 : 50; return 0; }
int nvmlDeviceGetNvLinkState(Device d, unsigned link, unsigned *on) { *on = link == 17; return 0; }
int nvmlDeviceGetNvLinkVersion(Device d, unsigned link, unsigned *version) { *version = 4; return 0; }
int nvmlDeviceGetNvLinkCapability(Device d, unsigned link, unsigned what, unsigned *can) { *can = what == 2; return 0; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device d, unsigned link, struct pci *p) {
    p->domain = 1, p->bus = 0xc1, p->device = 3;
    return link == 17 ? 0 : 3;
}
"#;

fn library(source: &str) -> (tempfile::TempDir, libloading::Library) {
    let dir = tempfile::tempdir().unwrap();
    let (text, library) = (dir.path().join("nvml.c"), dir.path().join("libnvidia-ml.so.1"));
    std::fs::write(&text, source).unwrap();
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&text).status().unwrap();
    assert!(made.success());
    // SAFETY: it has no initialisers.
    let library = unsafe { libloading::Library::new(&library) }.unwrap();
    (dir, library)
}

#[test]
fn every_shape_of_function_is_asked_rightly() {
    let (_dir, library) = library(LIKENESS);
    let machine = Nvml::of(library).unwrap().look().unwrap();
    assert_eq!((machine.driver.as_str(), machine.nvml.as_str(), machine.cuda), ("580.1", "13.580.1", 13010));
    let [first, second] = &machine.gpus[..] else { panic!("{machine:?}") };
    assert_eq!(
        (first.uuid.as_str(), second.uuid.as_str(), second.name.as_str()),
        ("GPU-0", "GPU-1", "A GPU")
    );
    assert_eq!(second.pci, Pci { domain: 0x10000, bus: 0x1c, device: 2, id: 7, subsystem: 8 });
    assert_eq!(second.capability, (9, 1));
    assert_eq!((first.text(Text::Serial), second.text(Text::Serial)), (Some("42"), None));
    let firmware = [first, second].map(|gpu| gpu.text(Text::GspFirmwareVersion));
    assert_eq!(firmware, [None, Some("580.2")]);
    let all = |gpu: &Gpu, of, count| (0..count).map(|which| gpu.number(of, which)).collect::<Vec<_>>();
    assert_eq!(second.number(Q::PowerUsage, 0), Some(70001));
    assert_eq!(second.number(Q::FanSpeed, 0), None);
    assert_eq!(second.number(Q::TotalEnergyConsumption, 0), Some(1 << 40));
    assert_eq!(all(second, Q::EccMode, 2), [Some(1), Some(0)]);
    assert_eq!(all(second, Q::ClockInfo, 4), [Some(1000), None, Some(1002), Some(1003)]);
    assert_eq!(all(second, Q::CpuAffinity, 3), [None, Some(0xf0), None]);
    assert_eq!(second.number(Q::MemoryAffinity, 0), Some(2));
    assert_eq!(all(first, Q::Memory, 4), [Some(100), Some(10), Some(60), Some(30)]);
    assert_eq!(all(second, Q::Memory, 4), [Some(200), Some(0), Some(150), Some(50)]);
    assert_eq!(all(second, Q::UtilizationRates, 2), [Some(98), Some(12)]);
    assert_eq!(second.number(Q::P2PStatus, Q::pair(0, 1)), Some(5));
    assert_eq!(second.number(Q::P2PStatus, Q::pair(1, 1)), None);
    assert_eq!(all(second, Q::TopologyCommonAncestor, 2), [Some(50), Some(0)]);
    assert_eq!((second.number(Q::NvLinkState, 16), second.number(Q::NvLinkState, 17)), (Some(0), Some(1)));
    assert_eq!((second.number(Q::NvLinkVersion, 16), second.number(Q::NvLinkVersion, 17)), (None, Some(4)));
    assert_eq!(second.number(Q::NvLinkCapability, Q::pair(17, 2)), Some(1));
    let remote = second.number(Q::NvLinkRemotePciInfo, 17).map(Pci::unpacked);
    assert_eq!(remote, Some(Pci { domain: 1, bus: 0xc1, device: 3, ..Pci::default() }));
}

#[test]
fn a_failing_nvml_is_named() {
    let (_dir, library) = library(&LIKENESS.replace("ready = 1; return 0;", "return 18;"));
    let error = Nvml::of(library).unwrap().look().unwrap_err();
    assert_eq!(error.to_string(), "nvmlInit_v2 of the machine's libnvidia-ml.so.1 answers 18");
}

#[test]
fn our_own_is_not_asked() {
    let (_dir, library) = library(&[LIKENESS, "char dormouse_shim;\n"].concat());
    assert!(Nvml::of(library).is_none());
}
