"""Sixty texts in fifteen scripts: words, offsets, answers and notes of the released head."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from hardkuma import HardKumaModel, load_released
from hardkuma.common.text import SHOWCASE
from hardkuma.scoring_hardkuma import gate_records
from hardkuma.words_hardkuma import ENGLISH, Language, check_words, find_words

# Four texts each; a bar where a word ends and no space shows it.
TEXTS = {
    "latin": [
        "Der Zug nach München fährt heute wegen des Sturms nicht.",
        "La profesora explicó el problema a los alumnos de Sevilla.",
        "Le train pour Lyon est en retard à cause de la neige.",
        "De burgemeester van Utrecht opende gisteren de nieuwe brug.",
    ],
    "cyrillic": [
        "Поезд в Москву опаздывает из-за сильного снега.",
        "Учёные нашли новый вид рыбы в озере Байкал.",
        "Київ є столицею України з давніх часів.",
        "Влакът за София закъснява с два часа.",
    ],
    "greek": [
        "Το τρένο για την Αθήνα έχει μεγάλη καθυστέρηση.",
        "Οι μαθητές διάβασαν ένα βιβλίο για τη θάλασσα.",
        "Η Θεσσαλονίκη είναι μια πόλη στη βόρεια Ελλάδα.",
        "Ο γιατρός είπε ότι το φάρμακο δεν βοηθά.",
    ],
    "arabic": [
        "القاهرة عاصمة مصر وأكبر مدنها.",
        "تأخر القطار إلى الإسكندرية بسبب المطر الغزير.",
        "کتابخانه‌ی تهران امروز بسته است و فردا باز می‌شود.",
        "لاہور میں آج بہت تیز بارش ہوئی ہے۔",
    ],
    "hebrew": [
        "הרכבת לחיפה מאחרת היום בגלל הגשם.",
        "ירושלים היא עיר עתיקה מאוד בהרים.",
        "דובר צה״ל מסר הודעה קצרה אתמול בערב.",
        "המורה הסבירה את הבעיה (לתלמידים) פעמיים.",
    ],
    "devanagari": [
        "दिल्ली भारत की राजधानी है और बहुत बड़ी है।",
        "मुंबई की ट्रेन बारिश के कारण देर से आई।",
        "डॉक्टर ने कहा कि दवा काम नहीं करती।",
        "काठमाडौं नेपालको राजधानी र ठूलो शहर हो।",
    ],
    "bengali": [
        "ঢাকা বাংলাদেশের রাজধানী এবং বড় শহর।",
        "বৃষ্টির কারণে কলকাতার ট্রেন দেরিতে এসেছে।",
        "ছাত্ররা নদী নিয়ে একটি বই পড়েছে।",
        "ডাক্তার বললেন ওষুধ কাজ করে না।",
    ],
    "tamil": [
        "சென்னை தமிழ்நாட்டின் தலைநகரம் மற்றும் பெரிய நகரம்.",
        "மழை காரணமாக மதுரை ரயில் தாமதமாக வந்தது.",
        "மாணவர்கள் கடல் பற்றி ஒரு புத்தகம் படித்தனர்.",
        "மருத்துவர் மருந்து வேலை செய்யாது என்றார்.",
    ],
    "hangul": [
        "부산으로 가는 기차가 눈 때문에 늦었습니다.",
        "서울은 한국의 수도이며 아주 큰 도시입니다.",
        "학생들은 바다에 관한 책을 읽었습니다.",
        "의사는 약이 효과가 없다고 말했다.",
    ],
    "cjk": [
        "北|京|是|中|国|的|首|都。",
        "因|为|下|雪，火|车|晚|点|了。",
        "我|在|Google|工|作|了|3|年。",
        "医|生|说|这|种|药|没|有|用。",
    ],
    "hiragana": [
        "東京|は|日本|の|首都|です。",
        "雪|のため|電車|が|遅|れています。",
        "彼女|は|昨日|ラーメン|を|食|べました。",
        "先生|は|Python3|を|使|う|学生|に|説明|した。",
    ],
    "thai": [
        "กรุง|เทพ|เป็น|เมือง|หลวง|ของ|ไทย",
        "วัน|นี้|ฝน|ตก|มาก",
        "การ|ประ|ชุม|ครั้ง|นี้|จะ|จัด|ขึ้น|ที่|เชียง|ใหม่",
        "ครู|จะ|ไม่|มา|วัน|นี้",
    ],
    "lao": ["ລາວ|ແມ່ນ|ປະ|ເທດ", "ມື້|ນີ້|ແມ່ນ|ວັນ|ຈັນ", "ໄປ|ໃສ|ມາ", "ເຂົາ|ເຈົ້າ|ບໍ່|ມາ"],
    "khmer": ["ភ្នំ|ពេញ|គឺ|ជា|រាជ|ធា|នី", "ថ្ងៃ|នេះ|មាន|ភ្លៀង", "ទី|ក្រុង|នេះ|ធំ|ណាស់", "ឆ្នាំ|នេះ|ខ្ញុំ|មាន|សៀវ|ភៅ"],
    "myanmar": ["ရန်|ကုန်|သည် မြန်|မာ|နိုင်|ငံ", "ဒီ|နေ့ မိုး|ရွာ|သည်", "ကျောင်း|သား|များ စာ|အုပ် ဖတ်|သည်", "သူ မ|လာ|ဘူး"],
}
# Mixed directions and scripts, and what is hardly a text.
ODD = [
    "The word שלום means peace, and سلام means it too.",
    "我爱New York和Москва!",
    "@東京 #タグ ラーメン",
    "\u200fשלום\u200e (hello) \u202bعربي\u202c",
    "ๆ ฯ เ",
    "々ー",
    "\u17d2\u1039",
    "𝐁𝐨𝐥𝐝 𝐭𝐞𝐱𝐭",
]
CASES = [(script, text) for script, texts in TEXTS.items() for text in texts]


@pytest.fixture(scope="module")
def model() -> HardKumaModel:
    return load_released()[0]


def test_there_are_sixty_texts_in_fifteen_scripts() -> None:
    assert len(TEXTS) == 15 and len(CASES) == 60 and len({text for _, text in CASES}) == 60


@pytest.mark.parametrize(("script", "text"), CASES)
def test_words(script: str, text: str) -> None:
    plain = text.replace("|", "")
    words = find_words(plain)
    check_words(plain, words)
    expected = [word.strip(".。،,۔।()") for word in text.replace("|", " ").replace("，", " ").split()]
    assert [plain[start:end] for start, end in words] == expected


@pytest.mark.parametrize("selector", ["meaning", "entities"])
def test_answers(model: HardKumaModel, selector: str) -> None:
    texts = [text.replace("|", "") for _, text in CASES]
    for (script, _), record in zip(CASES, gate_records(model, texts, selector=selector), strict=True):
        assert all(record["text"][word["start"] : word["end"]] == word["word"] for word in record["words"])
        assert record["rate"] < 1 or len(record["words"]) < 4, record
        assert "note" in record, record
        seen = script == "latin" or "Google" in record["text"]
        assert ("function words" if seen else "written in a script that the head has not seen") in record["note"]


@pytest.mark.parametrize("text", ODD)
def test_odd_texts(model: HardKumaModel, text: str) -> None:
    for record in gate_records(model, [text], selector="all"):
        assert all(record["text"][word["start"] : word["end"]] == word["word"] for word in record["words"])
        assert all(record["text"][span["start"] : span["end"]] == span["text"] for span in record["spans"])


def test_what_a_head_knows_has_no_note(model: HardKumaModel) -> None:
    texts = ["The train to Oslo is late because of the snow.", "Rain.", "", "Paris and Москва", "Milk, eggs, bread"]
    assert not any("note" in record for record in gate_records(model, texts))


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def listener() -> Iterator[_Listener]:
    from hardkuma.scoring_hardkuma import _UNSEEN_TEXTS, logger

    handler = _Listener()
    logger.addHandler(handler)
    _UNSEEN_TEXTS.clear()
    yield handler
    logger.removeHandler(handler)


def test_one_warning_for_a_process(model: HardKumaModel, listener: _Listener) -> None:
    gate_records(model, ["The train to Oslo is late because of the snow."])
    gate_records(model, ["Oslo, Bergen, Trondheim, Stavanger, Tromso, Drammen, Skien, Bodo", *["It rained."] * 9])
    assert not listener.messages, "one of ten has a note: no reason to warn"
    for _ in range(2):
        gate_records(model, ["It rained.", f"Поезд в Москву опаздывает{' снова' * 30}.", "北京是中国的首都"])
    assert len(listener.messages) == 1 and "has not seen" in listener.messages[0]
    assert "first one is 'Поезд в Москву опаздывает снова снова" in listener.messages[0]
    assert "…' (written in a script that the head has not seen (cyrillic))" in listener.messages[0]
    assert "(hardkuma gates --format jsonl)" in listener.messages[0]


def test_sentences_of_our_own_are_of_no_other_language() -> None:
    assert not [text for text in SHOWCASE if ENGLISH.note(text, find_words(text))], "one of them is all capitals"
    german = "DER ZUG NACH OSLO KOMMT HEUTE WEGEN DES SCHNEES WIEDER VIEL ZU SPAET AN"
    assert ENGLISH.note(german, find_words(german)) is not None


def test_a_lexicon_finds_words_and_nothing_is_lost() -> None:
    chinese = Language(lexicon="的 是 中国 首都 北京 中", scripts="cjk", function_words="的 是")
    text = "#北京是中国的首都，ABC中心。"
    words = find_words(text, chinese)
    assert [text[start:end] for start, end in words] == ["#北京", "是", "中国", "的", "首都", "ABC", "中", "心"]
    assert chinese.note(text, words) is None and ENGLISH.note(text, words) is not None
    assert [chinese.word_role(word) for word in ("的", "中国")] == [3, 0]


def test_languages_that_are_none() -> None:
    assert Language.make(None) == ENGLISH == Language.make(ENGLISH)
    assert Language.make({"function_words": "der die", "scripts": "latin"}).is_function_word("Die")
    with pytest.raises(ValueError, match="one line"):
        Language.make({"lexicon": ["a"]})
    with pytest.raises(ValueError, match="must be a mapping of function_words, lexicon, scripts"):
        Language.make({"words": "a"})
    with pytest.raises(ValueError, match="must be a mapping"):
        Language.make("german")
