/** The sentences of the page in English and Korean. */

const TEXTS = {
  en: {
    language: "한국어", model: "Model", version: "Version", newest: "newest ({version})", ask: "Ask", answer: "Answer", copy: "Copy",
    copied: "Copied.", copyByHand: "Selected: copy it with Ctrl+C.", copyByHand_touch: "Selected: copy it.", remove: "Remove", add: "Add another", examples: "Examples",
    token: "Access token", useToken: "Use", waiting: "Waiting for the answer …", empty: "Ask to see an answer here.",
    loading: "No model is ready yet: {models}. This page looks again every three seconds.",
    loadingOne: "{name} is still loading. This page shows it as soon as it is ready; the list above has the other models.",
    noModel: "The server has no model. Give it one: python -m bert_tf.serve --model_name=NAME --model_base_path=FOLDER.",
    measured: "{ms} ms round trip · {name}, version {version}",
    field_text: "Text", field_second_text: "Second text", field_question: "Question", field_context: "Context",
    field_choices: "Choice", field_json: "Body of the request (JSON)",
    task_classification: "Classification", task_multi_label_classification: "Classification with any number of labels",
    task_regression: "Regression", task_tagging: "Tagging", task_intent_and_slots: "Intent and slots", task_question_answering: "Question answering",
    task_multiple_choice: "Multiple choice", task_masked_lm: "Filling in {mask}", task_pretraining: "Filling in {mask}",
    field_lines: "Texts, one per line", task_vectors: "Vectors, compared by their cosine",
    task_reranking: "Reranking: question and text are read together", task_sparse_encoding: "Sparse vectors, compared by their dot product",
    search: "Search", compare: "Compare texts", scored: "{done} of {all} lines …", whichWords: "Which words?", allLines: "All {count} lines",
    score_vector: "Score: cosine with the question.", score_scores: "Score: as the model gives it.",
    score_pieces: "Score: the sum of the shared pieces' products, weight in the question times weight in the line.",
    marks: "The darker a word, the more the score falls without it.", without: "Without:", noWord: "Without any one word, the score does not fall.",
    noPiece: "No piece in common with the question.", otherPieces: "and {count} more: {sum}", repeated: "Repeated lines, shown once: {count}.",
    longLine: "This line is too long to leave out its words one by one.",
    firstLines: "The request for the first {count} lines; the page asks for the others in the same way.",
    twoPrompts: "{question} reads the question, {lines} the lines: exports of one model with different prompts.",
    onePrompt: "This export puts “{prompt}” in front of both the question and the lines. Serve one with the model's other prompt as well: the page then uses both.",
    noPrompt: "This export uses none of the model's prompts ({names}). Serve one with the prompt “query” as well: the page then uses it for the question.",
    task_unknown: "A SavedModel without a model card: write the request as JSON",
    labels: "labels: {labels}", andMore: "{labels} and {count} more",
    allLabels: "All {count} labels", allAnswers: "All {count} answers", allChoices: "All choices",
    noLabel: "no label", threshold: "A label is given from a probability of {threshold}.", scale: "on a scale from {low} to {high}",
    value: "value", similarity: "similarity", text: "text", label: "label", probability: "probability", characters: "characters",
    noEntity: "The model finds no entity in this text.", eachWord: "Each of the {count} words",
    cutRows: "The first {shown} of {all}.", noAnswer: "The model finds no answer in this context.",
    nullOdds: "Odds against an answer: {odds}; there is none above {threshold}.", runnersUp: "Best answers (click to see them in the context)",
    noMask: "Write {mask} where the model should fill in a word.", clickFilling: "Click a word to take it.",
    cosine: "cosine of the vectors (1: same direction)", twoTexts: "Add a second text to compare.", size: "Vectors of {size} numbers.",
    cutUnits: "The first {limit} of each text.",
    tab_tokens: "Tokens", tab_heads: "Attention: heads", tab_layers: "Attention: all", tab_request: "Request",
    askFirst: "Ask first: this shows what the model reads.",
    noAttention: "This version was exported without its attention. Export it again with it: python -m bert_tf.export --attention --model_dir=… --export_dir=…",
    oldAttention: "This version was exported by an older bert_tf, whose signature attention tells less about tokens. Export it again: python -m bert_tf.export --attention --model_dir=… --export_dir=…",
    piece: "piece", id: "id", type: "type", position: "position", sequence: "Sequence", asTable: "Ids, types and offsets as a table",
    tokenCount: "{words} words and punctuation marks are {tokens} tokens for the model, with {cls} and {sep}.",
    splitWords: "Words in several pieces: {words}", unknownWords: "Not in the vocabulary, so the model reads {unk}: {words}",
    changedWords: "Read in another form: {words}", secondType: "Framed pieces have type 1: the second segment.",
    notRead: "These tokens end at character {end} of {length} ({name}). The rest is cut off, or read in further windows that are not shown here.",
    layer: "Layer", head: "Head", heads: "Heads", allHeads: "all (mean)", from: "Show", pair_all: "all tokens", pair_01: "first text to second",
    pair_10: "second text to first", hideSpecial: "Hide {cls} and {sep}",
    cutTokens: "The first {shown} of {all} tokens are drawn.", strongest: "Darkest line: {weight}.",
    attentionWarning: "Attention shows from where a layer takes information. It does not explain the answer: other attention can give the same answer (Jain and Wallace, 2019; Wiegreffe and Pinter, 2019). To see what a token does to the answer, mask it.",
    keys: "Left and right arrow: head. Up and down: layer. Click a token to keep it, Ctrl+click to add a head.",
    keys_touch: "Tap a token to keep it, and again to let it go.",
    modelKeys: "Rows are layers, columns heads. Arrow keys move, Enter opens a head.",
    modelKeys_touch: "Rows are layers, columns heads. Tap a head to open it.",
    pointAt: "Point at a token, or go to it with Tab.", pointAt_touch: "Tap a token.", attendsTo: "{token} attends to", attendedBy: "{token} gets attention from",
    maskIt: "Mask {token}: what changes?", masked: "With {mask} instead of {token} (position {position})", before: "before", after: "after",
    nothingChanges: "No answer changes noticeably.", firstWindow: "Both columns are computed for the tokens shown here.", cell: "Layer {layer}, head {head}",
    gone: "The server does not answer. Check that it is still running (python -m bert_tf.serve), then ask again.",
    refused: "The server refused the request: {message}",
    needsToken: "The server asks for an access token. Enter the one that it was started with.",
    notServed: "The server no longer has this model or version: {message}. Choose another one above.",
    tooLarge: "The text is too long for the server: {message}. Send a shorter one.", busy: "The server is busy or still loading: {message}. Ask again in a moment.",
    slow: "The answer took longer than the server allows: {message}. Send a shorter text or ask again.",
    failed: "The server failed ({status}): {message}. Its log says more.",
    notJson: "The server's answer is not JSON: the model may compute NaN, or another program answers at this address.",
    badJson: "This is not JSON: {message}", noText: "Write a text first.", noLine: "Write a question and at least one line.", broken: "The page cannot show this answer: {message}",
  },
  ko: {
    language: "English", model: "모델", version: "버전", newest: "최신 ({version})", ask: "물어보기", answer: "답", copy: "복사",
    copied: "복사했습니다.", copyByHand: "선택했습니다. Ctrl+C로 복사하세요.", copyByHand_touch: "선택했습니다. 복사하세요.", remove: "지우기", add: "하나 더", examples: "예문",
    token: "접근 토큰", useToken: "사용", waiting: "답을 기다리는 중 …", empty: "물어보면 여기에 답이 나옵니다.",
    loading: "아직 준비된 모델이 없습니다: {models}. 3초마다 다시 확인합니다.",
    loadingOne: "{name} 모델은 아직 준비 중입니다. 준비되는 대로 보여 줍니다. 다른 모델은 위 목록에서 고르세요.",
    noModel: "서버에 모델이 없습니다. python -m bert_tf.serve --model_name=이름 --model_base_path=폴더 로 모델을 지정하세요.",
    measured: "왕복 {ms} ms · {name}, 버전 {version}",
    field_text: "텍스트", field_second_text: "둘째 텍스트", field_question: "질문", field_context: "본문",
    field_choices: "선택지", field_json: "요청 본문 (JSON)",
    task_classification: "분류", task_multi_label_classification: "다중 레이블 분류",
    task_regression: "회귀", task_tagging: "태깅", task_intent_and_slots: "의도와 슬롯", task_question_answering: "질의응답",
    task_multiple_choice: "객관식", task_masked_lm: "{mask} 채우기", task_pretraining: "{mask} 채우기",
    field_lines: "텍스트 (한 줄에 하나씩)", task_vectors: "벡터와 코사인 유사도",
    task_reranking: "재순위화: 질문과 텍스트를 함께 읽습니다", task_sparse_encoding: "희소 벡터와 내적",
    search: "검색", compare: "텍스트 비교", scored: "{all}줄 가운데 {done}줄 …", whichWords: "어떤 단어 때문일까?", allLines: "{count}줄 모두",
    score_vector: "점수: 질문과의 코사인.", score_scores: "점수: 모델이 준 값.",
    score_pieces: "점수: 함께 가진 조각마다 질문의 가중치와 줄의 가중치를 곱해 더한 값.",
    marks: "진한 단어일수록 그 단어를 빼면 점수가 많이 떨어집니다.", without: "빼면:", noWord: "어느 단어를 빼도 점수가 떨어지지 않습니다.",
    noPiece: "질문과 함께 가진 조각이 없습니다.", otherPieces: "외 {count}개: {sum}", repeated: "되풀이되어 한 번만 보인 줄: {count}개.",
    longLine: "줄이 너무 길어 단어를 하나씩 빼 보지 않습니다.",
    firstLines: "처음 {count}줄에 대한 요청입니다. 나머지도 같은 방법으로 물어봅니다.",
    twoPrompts: "질문은 {question}, 줄은 {lines} 모델이 읽습니다. 한 모델을 서로 다른 프롬프트로 내보낸 것입니다.",
    onePrompt: "이 모델은 질문과 줄 앞에 모두 “{prompt}”를 붙입니다. 다른 프롬프트로 내보낸 모델도 서비스하면 둘을 함께 씁니다.",
    noPrompt: "이 모델은 프롬프트({names})를 쓰지 않습니다. 프롬프트 “query”로 내보낸 모델도 서비스하면 질문에 그것을 씁니다.",
    task_unknown: "모델 카드가 없는 SavedModel입니다. 요청을 JSON으로 쓰세요",
    labels: "레이블: {labels}", andMore: "{labels} 외 {count}개",
    allLabels: "레이블 {count}개 모두", allAnswers: "답 {count}개 모두", allChoices: "선택지 모두",
    noLabel: "레이블 없음", threshold: "확률이 {threshold} 이상이면 레이블을 붙입니다.", scale: "{low}에서 {high}까지의 척도",
    value: "값", similarity: "유사도", text: "텍스트", label: "레이블", probability: "확률", characters: "글자 위치",
    noEntity: "이 텍스트에서 개체를 찾지 못했습니다.", eachWord: "단어 {count}개 모두",
    cutRows: "{all}개 가운데 처음 {shown}개입니다.", noAnswer: "이 본문에서 답을 찾지 못했습니다.",
    nullOdds: "답이 없을 오즈: {odds}. {threshold}보다 크면 답이 없는 것으로 봅니다.", runnersUp: "가장 좋은 답들 (누르면 본문에서 보입니다)",
    noMask: "모델이 채울 자리에 {mask} 토큰을 쓰세요.", clickFilling: "단어를 누르면 그 단어로 채웁니다.",
    cosine: "벡터의 코사인 (1이면 같은 방향)", twoTexts: "비교할 둘째 텍스트를 추가하세요.", size: "벡터 하나는 숫자 {size}개입니다.",
    cutUnits: "각 텍스트의 처음 {limit}개입니다.",
    tab_tokens: "토큰", tab_heads: "어텐션: 헤드", tab_layers: "어텐션: 전체", tab_request: "요청",
    askFirst: "먼저 물어보세요. 모델이 실제로 읽는 것을 보여 줍니다.",
    noAttention: "이 버전은 어텐션 없이 내보냈습니다. 다음과 같이 다시 내보내세요: python -m bert_tf.export --attention --model_dir=… --export_dir=…",
    oldAttention: "이 버전은 예전 bert_tf로 내보내서 attention 시그니처에 필요한 출력이 없습니다. 다시 내보내세요: python -m bert_tf.export --attention --model_dir=… --export_dir=…",
    piece: "조각", id: "id", type: "타입", position: "위치", sequence: "시퀀스", asTable: "id, 타입, 글자 위치를 표로 보기",
    tokenCount: "단어와 문장 부호 {words}개가 모델에게는 특수 토큰({cls}, {sep})을 포함해 토큰 {tokens}개입니다.",
    splitWords: "여러 조각으로 나뉜 단어: {words}", unknownWords: "어휘에 없어 모델이 {unk} 토큰으로 읽는 단어: {words}",
    changedWords: "다른 형태로 읽는 단어: {words}", secondType: "테두리만 있는 조각은 타입 1, 곧 둘째 구간입니다.",
    notRead: "여기 보이는 토큰은 {length}글자 가운데 {end}번째 글자에서 끝납니다({name}). 나머지는 잘리거나, 여기 보이지 않는 다음 창에서 읽습니다.",
    layer: "층", head: "헤드", heads: "헤드", allHeads: "모두 (평균)", from: "보기", pair_all: "모든 토큰", pair_01: "첫째 텍스트에서 둘째로",
    pair_10: "둘째 텍스트에서 첫째로", hideSpecial: "특수 토큰({cls}, {sep}) 숨기기",
    cutTokens: "토큰 {all}개 가운데 처음 {shown}개만 그렸습니다.", strongest: "가장 진한 선: {weight}.",
    attentionWarning: "어텐션은 층이 어디에서 정보를 가져오는지 보여 줄 뿐, 답을 설명하지 않습니다. 어텐션이 달라도 답은 같을 수 있습니다(Jain and Wallace, 2019; Wiegreffe and Pinter, 2019). 토큰이 답에 미치는 영향은 그 토큰을 가려서 확인하세요.",
    keys: "왼쪽과 오른쪽 화살표: 헤드. 위와 아래: 층. 토큰을 누르면 고정되고, Ctrl+클릭으로 헤드를 추가합니다.",
    keys_touch: "토큰을 누르면 고정되고, 다시 누르면 풀립니다.",
    modelKeys: "행은 층, 열은 헤드입니다. 화살표로 움직이고 Enter로 헤드를 엽니다.",
    modelKeys_touch: "행은 층, 열은 헤드입니다. 헤드를 누르면 열립니다.",
    pointAt: "토큰을 가리키거나 Tab으로 옮겨 가세요.", pointAt_touch: "토큰을 눌러 보세요.", attendsTo: "{token}이(가) 주목하는 토큰", attendedBy: "{token}에 주목하는 토큰",
    maskIt: "{token}을(를) 가리면 무엇이 달라질까?", masked: "{token} 자리에 {mask} 토큰을 넣은 결과 (위치 {position})", before: "전", after: "후",
    nothingChanges: "눈에 띄게 달라지는 답이 없습니다.", firstWindow: "두 열 모두 여기 보이는 토큰으로 계산했습니다.", cell: "{layer}층, 헤드 {head}",
    gone: "서버가 응답하지 않습니다. 서버(python -m bert_tf.serve)가 켜져 있는지 확인하고 다시 물어보세요.",
    refused: "서버가 요청을 거절했습니다: {message}",
    needsToken: "서버가 접근 토큰을 요구합니다. 서버를 시작할 때 정한 토큰을 입력하세요.",
    notServed: "서버에 이 모델이나 버전이 더 이상 없습니다: {message}. 위에서 다른 것을 고르세요.",
    tooLarge: "서버가 받기에는 텍스트가 너무 깁니다: {message}. 더 짧은 텍스트를 보내세요.", busy: "서버가 바쁘거나 모델을 읽는 중입니다: {message}. 잠시 뒤에 다시 물어보세요.",
    slow: "서버가 허용한 시간 안에 답이 나오지 않았습니다: {message}. 더 짧은 텍스트로 하거나 다시 물어보세요.",
    failed: "서버에서 오류가 났습니다({status}): {message}. 자세한 내용은 서버의 로그에 있습니다.",
    notJson: "서버의 답이 JSON이 아닙니다. 모델이 NaN을 계산했거나, 이 주소에서 다른 프로그램이 답하고 있습니다.",
    badJson: "JSON이 아닙니다: {message}", noText: "먼저 텍스트를 쓰세요.", noLine: "질문과 텍스트를 한 줄 이상 쓰세요.", broken: "이 답을 보여 줄 수 없습니다: {message}",
  },
};

let language = localStorage.getItem("language") ?? (navigator.language.startsWith("ko") ? "ko" : "en");
if (!(language in TEXTS)) language = "en";

export const currentLanguage = () => language;

export function switchLanguage() {
  language = language === "en" ? "ko" : "en";
  localStorage.setItem("language", language);
}

const touch = matchMedia("(hover: none)");

/** The sentence of a key with its {values} filled in; on touch screens that of KEY_touch, which names no keyboard. */
export function t(key, values = {}) {
  const found = (touch.matches && TEXTS[language][`${key}_touch`]) || (TEXTS[language][key] ?? key);
  return found.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

/** The sentence of an error: that of a Failure (api.js), or that the page is wrong. */
export const sentence = (error) => t(error.key ?? "broken", error.values ?? { message: error.message });

/** Writes the sentences of all elements with data-t. */
export function translatePage() {
  document.documentElement.lang = language;
  for (const node of document.querySelectorAll("[data-t]")) node.textContent = t(node.dataset.t);
}
